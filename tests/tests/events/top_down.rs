//! Metrics of top-down levels 1 to 3 against the formulas as Linux has them, evaluated naively in floating point.

use pmu_events::CoreType;
use pmu_events::metric::Metric;

/// The formulas of Linux 6.12 (Intel's, TMA 4.8; Zen 4 and 5) and of Linux 7.2 (Zen 6), as they stand there, in
/// `tools/perf/pmu-events/arch/x86`; but for perf's name of a hybrid's PMU.
const PUBLISHED: &str = include_str!("../../data/topdown_metrics.csv");

/// The sum of level 1 as perf reads it from `MSR_PERF_METRICS`. Events of the counters take its place: the numbers of
/// slots.
const SUM: &str =
    r"(topdown\-fe\-bound + topdown\-bad\-spec + topdown\-retiring + topdown\-be\-bound)";

/// Formulas that stand for those of Linux, on purpose.
const OTHERWISE: [(&str, &str, &str); 15] = [
    // Level 1 is of events, of which each slot is in one.
    ("icelake", "tma_retiring", "UOPS_RETIRED.SLOTS / TOPDOWN.SLOTS"),
    ("icelake", "tma_frontend_bound", "IDQ_UOPS_NOT_DELIVERED.CORE / TOPDOWN.SLOTS"),
    ("icelake", "tma_backend_bound", "TOPDOWN.BACKEND_BOUND_SLOTS / TOPDOWN.SLOTS"),
    (
        "icelake",
        "tma_bad_speculation",
        "1 - (tma_retiring + tma_frontend_bound + tma_backend_bound)",
    ),
    ("goldencove", "tma_retiring", "UOPS_RETIRED.SLOTS / TOPDOWN.SLOTS"),
    ("goldencove", "tma_frontend_bound", "IDQ_BUBBLES.CORE / TOPDOWN.SLOTS"),
    ("goldencove", "tma_backend_bound", "TOPDOWN.BACKEND_BOUND_SLOTS / TOPDOWN.SLOTS"),
    ("goldencove", "tma_bad_speculation", "TOPDOWN.BAD_SPEC_SLOTS / TOPDOWN.SLOTS"),
    // Events that count the fields of `MSR_PERF_METRICS`.
    ("goldencove", r"topdown\-br\-mispredict", "TOPDOWN.BR_MISPREDICT_SLOTS"),
    ("goldencove", r"topdown\-mem\-bound", "TOPDOWN.MEMORY_BOUND_SLOTS"),
    ("goldencove", r"topdown\-heavy\-ops", "UOPS_RETIRED.HEAVY"),
    ("goldencove", r"topdown\-fetch\-lat", "(6 * IDQ_BUBBLES.CYCLES_0_UOPS_DELIV.CORE)"),
    // The slots are those that level 1 counts.
    (
        "gracemont",
        "tma_backend_bound",
        "TOPDOWN_BE_BOUND.ALL / (TOPDOWN_RETIRING.ALL + TOPDOWN_BAD_SPECULATION.ALL + TOPDOWN_FE_BOUND.ALL + TOPDOWN_BE_BOUND.ALL)",
    ),
    // Linux' formula lacks a pair of parentheses around the choice by SMT: without SMT, the quotient is gone. This is
    // Ivy Bridge's, with Haswell's events of the formula.
    (
        "haswell",
        "tma_memory_bound",
        r"(min(CPU_CLK_UNHALTED.THREAD, CYCLE_ACTIVITY.STALLS_LDM_PENDING) + RESOURCE_STALLS.SB) / (min(CPU_CLK_UNHALTED.THREAD, CYCLE_ACTIVITY.CYCLES_NO_EXECUTE) + cpu@UOPS_EXECUTED.CORE\,cmask\=1@ - (cpu@UOPS_EXECUTED.CORE\,cmask\=3@ if tma_info_thread_ipc > 1.8 else cpu@UOPS_EXECUTED.CORE\,cmask\=2@) - (RS_EVENTS.EMPTY_CYCLES if tma_fetch_latency > 0.1 else 0) + RESOURCE_STALLS.SB) * tma_backend_bound",
    ),
    // Persistent memory is counted as memory, and has no metric.
    ("icelake", "tma_pmm_bound", "0"),
];

/// Core types with the same exceptions.
fn kind(core_type: &str) -> &str {
    match core_type {
        "icelakex" | "rocketlake" | "tigerlake" => "icelake",
        "alderlake_goldencove" | "sapphirerapids" | "emeraldrapids" => "goldencove",
        "meteorlake_redwoodcove" => "goldencove",
        "alderlake_gracemont" | "meteorlake_crestmont" | "sierraforest" | "grandridge" => {
            "gracemont"
        }
        "haswellx" => "haswell",
        other => other,
    }
}

/// The metric that Linux calls so, on any core type.
fn metric(published: &str) -> Metric {
    let alias = match published {
        "tma_ifetch_latency" | "frontend_bound_latency" | "frontend_bound_by_latency" => {
            "tma_fetch_latency"
        }
        "tma_ifetch_bandwidth" | "frontend_bound_bandwidth" | "frontend_bound_by_bandwidth" => {
            "tma_fetch_bandwidth"
        }
        "tma_branch_resteer" => "tma_branch_resteers",
        "bad_speculation_mispredicts" | "bad_speculation_from_mispredicts" => {
            "tma_branch_mispredicts"
        }
        "bad_speculation_pipeline_restarts" | "bad_speculation_from_pipeline_restarts" => {
            "tma_machine_clears"
        }
        "backend_bound_memory" | "backend_bound_by_memory" => "tma_memory_bound",
        "backend_bound_cpu" | "backend_bound_by_cpu" => "tma_core_bound",
        "retiring_fastpath" | "retiring_from_fastpath" => "tma_light_operations",
        "retiring_microcode" | "retiring_from_microcode" => "tma_heavy_operations",
        "retiring" => "tma_retiring",
        "bad_speculation" => "tma_bad_speculation",
        "frontend_bound" => "tma_frontend_bound",
        "backend_bound" => "tma_backend_bound",
        other => other,
    };
    let known = Metric::ALL.into_iter().find(|metric| metric.name() == alias);
    known.unwrap_or_else(|| panic!("{published}"))
}

/// A row of Linux' formulas.
struct Published {
    level: Option<u32>,
    parent: &'static str,
    name: &'static str,
    expression: &'static str,
}

/// Linux' formulas for a core type.
fn published(core_type: &str) -> Vec<Published> {
    let rows = PUBLISHED.lines().skip(1).filter_map(|line| {
        let [core_types, level, parent, name, expression] =
            line.splitn(5, ',').collect::<Vec<_>>().try_into().unwrap();
        let is_of = core_types.split(' ').any(|name| name == core_type);
        // The number of retired slots is a factor in it, where a share would have to be: the value is no share.
        let is_wrong = name == "tma_fp_arith"
            && expression == "tma_x87_use + tma_fp_scalar + tma_fp_vector"
            && ["sandybridge", "jaketown", "ivybridge", "ivytown"].contains(&core_type);
        (is_of && !is_wrong).then(|| Published {
            level: level.parse().ok(),
            parent,
            name,
            expression,
        })
    });
    rows.collect()
}

/// The naive model: a processor with made-up counts, and the formulas of its core type.
struct Model {
    core_type: &'static CoreType,
    rows: Vec<Published>,
    seed: u64,
}

impl Model {
    /// The number of times that any select is counted, from 2^26 to 2^40: each power of 2 is as likely as the others.
    fn count(&self, select: u64) -> u64 {
        let mut hash = (select ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash = (hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^= hash >> 32;
        (hash & 0xFF_FFFF_FFFF | 0x80_0000_0000) >> ((hash >> 40) % 14)
    }

    /// Counts `NAME`, or `NAME\,cmask\=1\,edge`.
    fn event(&self, text: &str) -> f64 {
        let text = text.replace('\\', "");
        let mut parts = text.split(',');
        let event = self.core_type.event(parts.next().unwrap());
        let mut select = event.unwrap_or_else(|_| panic!("{text}")).select().select_bits();
        for part in parts {
            let (field, value) = part.split_once('=').unwrap_or((part, "1"));
            let value = value.trim_start_matches("0x");
            let value = u64::from_str_radix(value, 16).unwrap();
            match field {
                "umask" => select = select & !0xFF00 | value << 8,
                "cmask" => select |= value << 24,
                "edge" => select |= value << 18,
                other => panic!("{other}"),
            }
        }
        self.count(select) as f64
    }

    fn value(&self, name: &str) -> f64 {
        let otherwise = OTHERWISE.iter().find(|(kind_of, metric, _)| {
            let of = kind(self.core_type.name());
            *metric == name && (*kind_of == of || *metric == "tma_pmm_bound")
        });
        let row = self.rows.iter().find(|row| row.name == name);
        match (otherwise, row, name) {
            (_, _, "#SMT_on" | "#has_pmem") => 0.0,
            (_, _, "#core_wide") => 1.0,
            (Some((.., text)), ..) => self.formula(text),
            (_, Some(row), _) => self.formula(&row.expression.replace(SUM, "TOPDOWN.SLOTS")),
            (None, None, event) => self.event(event),
        }
    }

    fn formula(&self, text: &str) -> f64 {
        let mut rest = tokens(text);
        let value = self.choice(&mut rest);
        assert!(rest.is_empty(), "{text}: {rest:?}");
        value
    }

    // The tokens are last first.
    fn choice(&self, rest: &mut Vec<String>) -> f64 {
        let value = self.sum(rest);
        if rest.last().is_none_or(|next| next != "if") {
            return value;
        }
        rest.pop();
        let left = self.sum(rest);
        let holds = match rest.last().map(String::as_str) {
            Some("<") => rest.pop().is_some() && left < self.sum(rest),
            Some(">") => rest.pop().is_some() && left > self.sum(rest),
            _ => left != 0.0,
        };
        assert_eq!(rest.pop().unwrap(), "else");
        let other = self.choice(rest);
        if holds { value } else { other }
    }

    fn sum(&self, rest: &mut Vec<String>) -> f64 {
        let mut value = self.product(rest);
        loop {
            match rest.last().map(String::as_str) {
                Some("+") => value += rest.pop().map_or(0.0, |_| self.product(rest)),
                Some("-") => value -= rest.pop().map_or(0.0, |_| self.product(rest)),
                _ => return value,
            }
        }
    }

    fn product(&self, rest: &mut Vec<String>) -> f64 {
        let mut value = self.operand(rest);
        loop {
            match rest.last().map(String::as_str) {
                Some("*") => value *= rest.pop().map_or(0.0, |_| self.operand(rest)),
                Some("/") => value /= rest.pop().map_or(0.0, |_| self.operand(rest)),
                _ => return value,
            }
        }
    }

    fn operand(&self, rest: &mut Vec<String>) -> f64 {
        let token = rest.pop().unwrap();
        if let Ok(number) = token.parse() {
            return number;
        }
        let mut argument = |end: &str| {
            let value = self.choice(rest);
            assert_eq!(rest.pop().unwrap(), end);
            value
        };
        match token.as_str() {
            "(" => argument(")"),
            "max(" => argument(",").max(argument(")")),
            "min(" => argument(",").min(argument(")")),
            "d_ratio(" => match (argument(","), argument(")")) {
                (_, 0.0) => 0.0,
                (over, under) => over / under,
            },
            name => self.value(name),
        }
    }
}

/// The tokens of a formula, the last one first. A function's name has its parenthesis.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim());
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '+' | '-' | '*' | '/' | '<' | '>' | '(' | ')' | ',' => 1,
            _ if rest.starts_with("cpu@") => 5 + rest[4..].find('@').unwrap(),
            _ => {
                // `\-` is part of a name.
                let mut before = ' ';
                let ends = |c: char| {
                    let is_end = " ()*,<>/".contains(c) || "+-".contains(c) && before != '\\';
                    before = c;
                    is_end
                };
                let len = rest.find(ends).unwrap_or(rest.len());
                len + usize::from(rest[len..].starts_with('('))
            }
        };
        let (token, behind) = rest.split_at(len);
        let token = token.strip_prefix("cpu@").and_then(|t| t.strip_suffix('@')).unwrap_or(token);
        tokens.push(token.to_owned());
        rest = behind.trim_start();
    }
    tokens.reverse();
    tokens
}

#[test]
fn metrics_of_levels_2_and_3_are_what_linux_formulas_give_on_any_counts() {
    let (mut compared, mut core_types) = (0, 0);
    for core_type in CoreType::all() {
        let rows = published(core_type.name());
        core_types += usize::from(!rows.is_empty());
        for row in rows.iter().filter(|row| row.level > Some(1) || row.name == "smt_contention") {
            let name = row.name;
            let expression = core_type.metric(metric(name));
            let expression = expression.unwrap_or_else(|error| panic!("{core_type}: {error}"));
            let events: Vec<_> = expression.events().collect();
            for seed in 0..20 {
                let model = Model { core_type, rows: published(core_type.name()), seed };
                let counted = |name: &str| {
                    let event = events.iter().find(|event| event.name() == name)?;
                    Some(model.count(event.event().select().select_bits()))
                };
                let expected = model.value(name) * 1e6;
                let ratio = expression.ratio(counted).unwrap();
                let value = ratio.times(1_000_000).unwrap_or_else(|| {
                    panic!("{core_type}: {name}: {expression}: {ratio:?}, not {expected}")
                }) as f64;
                let off = (value - expected).abs();
                assert!(
                    off <= 1.01 + expected.abs() / 1e8,
                    "{core_type}: {name}: {expression}: {value}, not {expected}"
                );
                compared += 1;
            }
        }
    }
    assert_eq!((core_types, compared), (27, 13_800));
}

#[test]
fn each_metric_divides_the_metric_that_linux_says() {
    for core_type in CoreType::all() {
        let rows = published(core_type.name());
        let (mut levels, known) = ([0; 4], Metric::ALL.map(|m| core_type.metric(m).is_ok()));
        for row in rows.iter().filter(|row| row.level.is_some()) {
            let (metric, level) = (metric(row.name), row.level.unwrap());
            let expected = (!row.parent.is_empty()).then(|| self::metric(row.parent));
            assert_eq!(metric.parent(), expected, "{core_type}: {metric}");
            let depth = core::iter::successors(Some(metric), |of| of.parent()).count();
            assert_eq!(depth as u32, level, "{core_type}: {metric}");
            levels[depth] += 1;
        }
        // Beyond level 1, the core type has the metrics that Linux has.
        let beyond =
            Metric::ALL.into_iter().zip(known).filter(|(of, is)| *is && of.parent().is_some());
        assert_eq!(beyond.count(), levels[2] + levels[3], "{core_type}");
    }
}

/// The events of a metric are counted like any others.
#[test]
fn a_formula_sets_fields_of_an_events_select() {
    let select = |core_type: &str, metric: Metric, name: &str| {
        let core_type = CoreType::named(core_type).unwrap();
        let expression = core_type.metric(metric).unwrap();
        let event = expression.events().find(|event| event.name() == name).unwrap();
        let opened = pmu_core::Event::from(event);
        assert_eq!(opened, pmu_core::Event::from(event.event()));
        event.event().select().select_bits()
    };
    // Intel's lists: ICACHE_16B.IFDATA_STALL is event 0x80, unit mask 4. SDM vol. 3B, IA32_PERFEVTSEL: the edge bit is
    // 18, and the counter mask begins at 24.
    let misses = "ICACHE_16B.IFDATA_STALL:cmask=1:edge=1";
    assert_eq!(select("skylake", Metric::IcacheMisses, misses), 0x0104_0480);
    // Unit mask 0x80 of event 0xA6.
    let none = "EXE_ACTIVITY.3_PORTS_UTIL:umask=0x80";
    assert_eq!(select("icelake", Metric::PortsUtilization, none), 0x80A6);
    // PMCx1A0: six slots per cycle.
    let starved = "de_no_dispatch_per_slot.no_ops_from_frontend:cmask=6";
    assert_eq!(select("zen4", Metric::FetchLatency, starved), 0x1_0600_01A0);
}

#[test]
fn an_event_of_a_metric_within_a_metric_is_named_once_and_asked_for() {
    let skylake = CoreType::named("skylake").unwrap();
    let bound = skylake.metric(Metric::CoreBound).unwrap();
    assert_eq!(bound.to_string(), "tma_backend_bound - tma_memory_bound");
    let names: Vec<_> = bound.events().map(|event| event.name()).collect();
    assert_eq!(names.iter().filter(|name| **name == "CPU_CLK_UNHALTED.THREAD").count(), 1);
    assert!(names.contains(&"EXE_ACTIVITY.2_PORTS_UTIL"), "{names:?}");
    let all_but = |lost: &'static str| move |name: &str| (name != lost).then_some(7);
    for name in names {
        let error = bound.ratio(all_but(name)).err();
        assert_eq!(error, Some(pmu_events::metric::MetricError::NotCounted(name)));
    }
}

/// The counters of a metric may be off in any way: no count makes a formula panic.
#[test]
fn any_counts_give_a_ratio_or_an_error() {
    for core_type in CoreType::all() {
        for metric in Metric::ALL {
            let Ok(expression) = core_type.metric(metric) else { continue };
            for counts in [[0, u64::MAX], [1, u64::MAX], [u64::MAX, u64::MAX], [0, 1], [1 << 63, 3]]
            {
                for turn in 0..2 {
                    let counted = |name: &str| Some(counts[(name.len() + turn) % 2]);
                    if let Ok(ratio) = expression.ratio(counted) {
                        let _ = ratio.times(u32::MAX);
                    }
                }
            }
        }
    }
}
