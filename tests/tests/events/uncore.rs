//! Events of uncore units: names and encodings against libpfm4's, and the shape of the lists.

use std::collections::BTreeSet;

use pmu_events::uncore::{Uncore, UncoreEvent};
use pmu_events::{CoreType, EventError};

/// Event numbers and unit masks of libpfm4, for the first of each kind of unit.
const LIBPFM4: &str = include_str!("../../data/libpfm4_uncore.csv");

fn uncore(core_type: &str) -> &'static Uncore {
    Uncore::of(CoreType::named(core_type).unwrap()).unwrap()
}

fn event(core_type: &str, name: &str) -> UncoreEvent {
    let mut named = uncore(core_type).matching(name);
    let event = named.next().unwrap_or_else(|| panic!("{name}"));
    assert!(named.next().is_none(), "{name}");
    event
}

/// If both differ, Intel's list decides: many of libpfm4's rings and ranks have other bits set.
#[test]
fn libpfm4_has_the_same_event_numbers_and_unit_masks() {
    let (mut same, mut different) = (0, 0);
    let mut units: Option<&Uncore> = None;
    for line in LIBPFM4.lines() {
        if let Some(unit) = line.strip_prefix("# ") {
            units = match unit.split('_').next().unwrap() {
                "ivbep" => Some(uncore("ivytown")),
                "hswep" => Some(uncore("haswellx")),
                "skx" => Some(uncore("skylakex")),
                "knl" => Some(uncore("knightslanding")),
                _ => None,
            };
            continue;
        }
        let (name, code) = line.split_once(",0x").unwrap();
        let name = name.replace(':', ".");
        let code = u64::from_str_radix(code, 16).unwrap();
        let named = units.into_iter().flat_map(|units| units.events());
        let codes: Vec<_> = named
            .filter(|event| event.name() == name)
            .map(|event| {
                let [number, mask] =
                    ["event", "umask"].map(|field| event.field(field).unwrap_or(0));
                number & 0xFF | (mask & 0xFF) << 8
            })
            .collect();
        match (codes.is_empty(), codes.contains(&code)) {
            (true, _) => {}
            (false, true) => same += 1,
            (false, false) => different += 1,
        }
    }
    assert_eq!((same, different), (1_713, 159));
}

/// AMD's processor programming references: the L3's event 0x04 with unit mask 0xFF for all accesses, of all cores and
/// slices; the fabric's DRAM channel 0; and the memory controller's CAS commands, of reads alone.
#[test]
fn amds_units_have_their_encodings() {
    let written = |core_type, name| event(core_type, name).to_string();
    let accesses = "l3_lookup_state.all_coherent_accesses_to_l3";
    let l3 = event("zen5", accesses);
    assert_eq!((l3.unit(), l3.to_string().as_str()), ("amd_l3", "amd_l3/event=0x4,umask=0xff/"));
    assert_eq!(event("zen6", accesses), l3);
    let sampled = event("zen5", "l3_xi_sampled_latency.dram_near");
    let fields = ["event", "umask", "enallcores", "enallslices", "sliceid", "threadmask"];
    let values = [0xAC, 1, 1, 1, 3, 3].map(Some);
    assert_eq!(fields.map(|field| sampled.field(field)), values);
    assert_eq!(sampled.field("cmask"), None);
    let channel = "local_or_remote_socket_read_data_beats_dram_0";
    assert_eq!(written("zen5", channel), "amd_df/event=0x1f,umask=0xffe/");
    assert_eq!(written("zen6", "UMC_CAS_CMD.RD"), "amd_umc/event=0xa,rdwrmask=0x1/");
}

#[test]
fn every_line_of_every_list_is_an_event_of_a_unit_of_linux() {
    let (mut lists, mut events) = (BTreeSet::new(), 0);
    for core_type in CoreType::all() {
        let Some(units) = Uncore::of(core_type) else { continue };
        if !lists.insert(core::ptr::from_ref(units).addr()) {
            continue;
        }
        let all: Vec<_> = units.events().collect();
        assert!(all.is_sorted_by_key(|event| (event.unit(), event.name())), "{core_type}");
        assert!(units.source().starts_with("Linux "), "{core_type}");
        for event in &all {
            let is_amd = core_type.name().starts_with("zen");
            let prefix = if is_amd { "amd_" } else { "uncore_" };
            assert!(event.unit().starts_with(prefix), "{event:?}");
            assert!(event.field("event").is_some(), "{event:?}");
            // All fields are read: their text is perf's.
            let text = format!("{event}").replace([',', '/'], " ");
            let (_, fields) = text.split_once(' ').unwrap();
            assert!(all.len() <= 1_298 && !event.name().is_empty(), "{event:?}");
            assert_eq!(fields.split_whitespace().count(), event.fields().count(), "{event:?}");
            // No counter of a core counts it.
            if core_type.event(event.name()).is_err() {
                let error = core_type.event_or_uncore(event.name()).err();
                assert!(matches!(error, Some(EventError::Uncore(_))), "{event:?}: {error:?}");
            }
        }
        events += all.len();
    }
    assert_eq!((lists.len(), events), (27, 8_359));
}

#[test]
fn a_name_of_no_unit_and_no_core_stays_unknown() {
    let zen = CoreType::named("zen5").unwrap();
    assert_eq!(zen.event_or_uncore("l3_no_such").err(), Some(EventError::Unknown));
    assert_eq!(zen.event_or_uncore("l3 miss").err(), Some(EventError::Character { at: 2 }));
    let error = zen.event_or_uncore("L3_LOOKUP_STATE.L3_MISS").err().unwrap();
    let told = "an event of amd_l3, an uncore unit: no counter of a core counts it";
    assert_eq!(error.to_string(), told);
    let bonnell = CoreType::named("bonnell").unwrap();
    assert!(Uncore::of(bonnell).is_none());
    assert_eq!(bonnell.event_or_uncore("umc_mem_clk").err(), Some(EventError::Unknown));
}
