//! The documents' control area: the PEBS index of samples and of context switches is that of the area which the
//! processor uses.

use core::cell::RefCell;
use core::sync::atomic::Ordering::Relaxed;

use pmu_core::frame::{InterruptFrame, ProcessorNumber};
use pmu_core::windows::{Rules, WindowsVersion};
use pmu_core::{Sample, service};
use pmu_intel::debug_store::{
    CallerMode, ControlAreaError, DebugStoreSupport, ProcessorProfileControl,
};
use pmu_intel::precise::{Pebs, PreciseThreshold};
use pmu_kprofile::trace::{CONTEXT_SWITCH_HOOK, ContextSwitch, Extended, PERF_CONTEXT_SWITCH};
use pmu_tests::kprofile::tracing::Tracing;
use pmu_tests::opened::raw;

use crate::scene::*;
use crate::support::*;

type Control = ProcessorProfileControl<'static, 48>;

/// The processors that write records to the Debug Store.
fn with_area() -> impl Iterator<Item = Processor> {
    let is_architectural = |name| ["architectural", "fragments"].contains(&name);
    processors().into_iter().filter(move |processor| !is_architectural(processor.name))
}

fn control_of(scene: &'static Scene) -> Control {
    ProcessorProfileControl::new(Some(scene.memory.control_area()))
}

/// Returns the number of bytes that are in the buffer, as the area at the address in `IA32_DS_AREA` says.
fn written(scene: &Scene) -> u64 {
    let [area, _] = words(scene.memory);
    assert_eq!(scene.read(0x600), area.as_ptr() as u64);
    // Offsets 0x20 and 0x28: PebsBufferBase, PebsIndex.
    area[5].load(Relaxed) - area[4].load(Relaxed)
}

#[test]
fn the_pebs_index_of_the_control_area_is_the_real_one() {
    for (processor, created) in with_area().flat_map(|of| [(of, false), (of, true)]) {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let control = control_of(scene);
        let support = DebugStoreSupport::detect(&scene.mock.snapshot(), &scene.mock).unwrap();
        let address = core::ptr::from_ref(scene.memory).addr() as u64;
        assert_eq!(control.pebs_index(), None);
        if created {
            control.create(&support).unwrap();
        }
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        let before = control.pebs_index().unwrap();
        assert_eq!(Some(before), scene.memory.pebs_index());
        scene.happen(0, 3 * PERIOD);
        let index = control.pebs_index().unwrap();
        assert_eq!((scene.mock.written_records(), index - before), (3, written(scene)), "{what}");
        assert_ne!(index, before);

        // Requests leave the area as it is: no record is lost.
        let exists = Err(ControlAreaError::AlreadyExists { area: address });
        assert_eq!(control.create(&support).map(|_| ()), exists);
        let mut request = [0xAA; 16];
        request[8] = 1;
        let asked = control.set(CallerMode::Kernel, &support, &mut request);
        assert_eq!((asked, &request[..8]), (exists, &address.to_le_bytes()[..]));
        let destroyed = if created { Ok(()) } else { Err(ControlAreaError::NotAllocated) };
        assert_eq!(control.destroy(), destroyed);
        assert_eq!(control.pebs_index(), Some(index));

        scene.ends_after(session, 3, &what);
        assert_eq!((scene.memory.pebs_index(), control.pebs_index()), (None, None));
        assert_eq!(control.create(&support).map(|_| ()), Ok(()));
        assert_eq!(control.pebs_index(), Some(0));
    }
}

#[test]
fn without_an_area_there_is_no_index() {
    for processor in named("architectural") {
        let scene = Scene::new(processor);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        assert_eq!(control_of(scene).pebs_index(), None);
        scene.ends(session, processor.name);
    }
    // "The PROCESSOR_PROFILE_CONTROL_AREA dates from version 6.2."
    for (version, has_area) in [(WindowsVersion::Windows7, false), (WindowsVersion::Windows8, true)]
    {
        let scene = Scene::new(with_area().next().unwrap());
        let rules = Rules { version, ..Rules::LATEST };
        let control = Control::as_of(rules, Some(scene.memory.control_area()));
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        assert_eq!(control.pebs_index().is_some(), has_area);
        scene.ends(session, "a version");
    }
}

/// A reader of the trace tells by the indices whose instructions the records in the buffer are.
#[test]
fn context_switches_have_the_index_by_which_records_belong_to_threads() {
    for processor in with_area() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let mut tracing = Tracing::latest();
        tracing.control.set_pebs_hooks(&[CONTEXT_SWITCH_HOOK]).unwrap();
        tracing.flags(&[PERF_CONTEXT_SWITCH]).unwrap();
        let control = control_of(scene);
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        let base = control.pebs_index().unwrap();
        // Threads 1, 2 and 3 run for these numbers of records.
        for (old_thread, records) in [(1, 2), (2, 0), (3, 4)] {
            scene.happen(0, records * PERIOD);
            let switch = ContextSwitch { old_thread, ..ContextSwitch::default() };
            let pebs_index = control.pebs_index();
            let extended = Extended { pebs_index, ..Extended::default() };
            let on = pmu_tests::kprofile::processor(0, 0);
            tracing.switches.record(on, old_thread.into(), extended, switch);
        }
        let size = written(scene) / 6;
        let traced = tracing.drain_switches(0).into_iter();
        let traced: Vec<_> = traced
            .map(|(_, extended, switch)| (switch.old_thread, extended.pebs_index.unwrap()))
            .collect();
        let expected = [(1, base + 2 * size), (2, base + 2 * size), (3, base + 6 * size)];
        assert_eq!(traced, expected, "{what}");
        // After the samples were reported the buffer begins anew.
        scene.drain(&mut session);
        assert_eq!(control.pebs_index(), Some(base), "{what}");
        scene.ends(session, &what);
    }
}

/// A frame of the interrupt, as an embedder makes it.
struct Frame(&'static Control);

impl InterruptFrame for Frame {
    fn pc(&self) -> u64 {
        0x1000
    }

    fn cs(&self) -> u16 {
        0x10
    }

    fn flags(&self) -> u64 {
        2
    }

    fn processor(&self) -> ProcessorNumber {
        pmu_tests::kprofile::processor(0, 0)
    }

    fn process(&self) -> Option<pmu_core::frame::ProcessId> {
        None
    }

    fn pebs_index(&self) -> Option<u64> {
        self.0.pebs_index()
    }
}

#[test]
fn a_sample_has_the_index_of_the_records_that_were_written_before_the_sample() {
    for processor in with_area() {
        let (scene, what) = (Scene::new(processor), name(&processor));
        let control: &'static Control = Box::leak(Box::new(control_of(scene)));
        let indices: &RefCell<Vec<u64>> = Box::leak(Box::default());
        scene.mock.on_interrupt(Box::leak(Box::new(move |mock: &Mock<'_>| {
            let (frame, source) = (Frame(control), scene.source());
            let report = |sample: Sample<'_, Option<Pebs<'static>>>| {
                scene.note(&sample);
                indices.borrow_mut().push(frame.pebs_index().unwrap());
            };
            service(&source, mock, &scene.counter_memory, report).unwrap();
        })));
        scene.memory.set_threshold(PreciseThreshold::NearlyFull);
        let mut session = scene.take();
        scene.start(&mut session, &precise(0));
        scene.start(&mut session, &raw(2).every(10_000));
        let base = control.pebs_index().unwrap();
        for records in [3, 0, 2] {
            scene.happen(0, records * PERIOD);
            scene.happen(2, 10_000);
        }
        let size = written(scene) / 5;
        let expected = [3, 3, 5].map(|records| base + records * size);
        assert_eq!(*indices.borrow(), expected, "{what}");
        scene.ends_after(session, 5, &what);
    }
}
