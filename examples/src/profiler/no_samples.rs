//! Reasons for which a profile has no samples, and advice.

use core::fmt;
use core::mem::zeroed;
use core::time::Duration;
use std::fs;

use super::call_stacks::Thread;
use super::process_tree::descendants_of;
use super::report::consumed::Unit;
use crate::untrusted::visible;

/// The number of threads that are named.
const NAMED: usize = 5;

/// A reason for which a profile has no samples. Displayed, it is advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSamples {
    /// All that ran had less than an interval.
    Short(Unit),
    /// The processes of `--pid` did nothing, while these descendants of theirs, which are not sampled, were there.
    Asleep {
        /// The processes.
        processes: Vec<u32>,
        /// The descendants, with their names.
        descendants: Vec<(u32, String)>,
    },
    /// `--only` selects none of the threads that have samples.
    NotSelected {
        /// The wanted names and numbers.
        wanted: Vec<String>,
        /// The threads that have samples.
        sampled: Vec<Thread>,
    },
    /// The command took processor time that the kernel did not count.
    NotCounted {
        /// The processor time that it took.
        used: Duration,
        /// The unit of the interval.
        unit: Unit,
    },
}

impl NoSamples {
    /// Finds the reason of running processes without samples.
    pub fn of_processes(processes: &[u32], unit: Unit) -> Self {
        let of = |process: &u32| descendants_of(*process as i32);
        let name = |process: i32| {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            (process as u32, name.trim_end_matches('\n').to_owned())
        };
        let mut descendants: Vec<_> = processes.iter().flat_map(of).map(name).collect();
        descendants.retain(|(process, _)| !processes.contains(process));
        match descendants.is_empty() {
            true => Self::Short(unit),
            false => Self::Asleep { processes: processes.to_vec(), descendants },
        }
    }

    /// Finds the reason of a command without samples, from its processor time, the kernel's count for it and the
    /// interval, both in `unit`.
    pub fn of_command(used: Duration, counted: Option<u64>, interval: u64, unit: Unit) -> Self {
        let (counted, time) = (counted.unwrap_or(0), used.as_nanos() as u64);
        let is_counted = match unit {
            // Part of the time is this program's own, between fork and exec.
            Unit::Nanoseconds => time < interval || time < counted.saturating_mul(4),
            Unit::Events => time < 10_000_000 || counted >= interval,
        };
        if is_counted {
            return Self::Short(unit);
        }
        Self::NotCounted { used, unit }
    }
}

impl fmt::Display for NoSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |unit: &Unit| match unit {
            Unit::Nanoseconds => "took less processor time than an interval",
            Unit::Events => "had fewer events than an interval",
        };
        match self {
            Self::Short(unit) => write!(
                f,
                "no samples: what ran {}; let it do more, or choose a shorter --interval",
                short(unit)
            ),
            Self::Asleep { processes, descendants } => {
                let numbers: Vec<_> = processes.iter().map(u32::to_string).collect();
                let named = descendants.iter().take(NAMED);
                let (theirs, names): (Vec<_>, Vec<_>) =
                    named.map(|(number, name)| (number.to_string(), visible(name))).unzip();
                write!(
                    f,
                    "no samples: process {} slept; what it started before is not sampled with it: `--pid {}` samples \
                     {}",
                    numbers.join(", "),
                    theirs.join(","),
                    names.join(", ")
                )?;
                match descendants.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, "; and there are {more} more"),
                }
            }
            Self::NotSelected { wanted, sampled } => {
                write!(
                    f,
                    "no samples of --only {}: no thread or process of that name or number was sampled; ",
                    wanted.join(",")
                )?;
                let mut threads: Vec<(&str, u32)> = Vec::new();
                for Thread { process, thread, process_name, name } in sampled {
                    for (name, number) in [(&**process_name, *process), (&**name, *thread)] {
                        if threads.iter().all(|(known, _)| *known != name) {
                            threads.push((name, number));
                        }
                    }
                }
                let named = threads.iter().take(NAMED);
                let named: Vec<_> =
                    named.map(|(name, number)| format!("{} ({number})", visible(name))).collect();
                write!(f, "sampled were {}", named.join(", "))?;
                match threads.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} other names; without --only, --json has all"),
                }
            }
            Self::NotCounted { used, unit } => {
                let used = used.as_secs_f64() * 1e3;
                write!(
                    f,
                    "no samples, though the command took {used:.0} ms of processor time.\n  "
                )?;
                if *unit == Unit::Events {
                    write!(f, "Either it {}: choose a shorter --interval. Or the", short(unit))?;
                } else {
                    f.write_str("Perhaps the")?;
                }
                write!(
                    f,
                    " kernel does not let it be measured: a program that this user may not read, or \
                     that is set-user-ID.\n  \
                     As root, `profile --all --only NAME` samples it while it runs."
                )
            }
        }
    }
}

/// Returns the processor time of children that ended and were waited for.
pub fn time_of_children() -> Duration {
    // SAFETY: plain data, for which zero is a valid value of every field.
    let mut usage: libc::rusage = unsafe { zeroed() };
    // SAFETY: the pointer is valid for the call. If it fails, the times are zero.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processor time in milliseconds, the kernel's count and the interval, and whether the command is not measured.
    #[test]
    fn a_command_whose_time_the_kernel_counted_is_short() {
        let (time, events) = (Unit::Nanoseconds, Unit::Events);
        for (used, counted, interval, unit, expected) in [
            (1_300, Some(30_000), 1_000_000, time, true),
            (3, Some(50_000), 1_000_000, time, true),
            (1_300, None, 1_000_000, time, true),
            (1, Some(600_000), 1_000_000, time, false),
            (90, Some(80_000_000), 100_000_000, time, false),
            (1_300, Some(0), 65_536, events, true),
            (1, Some(0), 65_536, events, false),
        ] {
            let used = Duration::from_millis(used);
            let reason = NoSamples::of_command(used, counted, interval, unit);
            let is_short = matches!(reason, NoSamples::Short(_));
            assert_eq!(is_short, !expected, "{used:?}, {counted:?}, {interval}");
            let text = reason.to_string();
            assert_eq!(text.contains("set-user-ID"), expected, "{text}");
            assert_eq!(text.contains("profile --all --only NAME"), expected, "{text}");
        }
    }

    #[test]
    fn threads_that_were_sampled_are_named_once_and_not_all() {
        let thread = |thread, name: &str| Thread {
            process: 7,
            thread,
            process_name: "server".into(),
            name: name.into(),
        };
        let few = [thread(7, "server"), thread(8, "worker"), thread(9, "server")];
        let wanted = vec!["serve".into(), "12".into()];
        let reason = NoSamples::NotSelected { wanted: wanted.clone(), sampled: few.to_vec() };
        let text = reason.to_string();
        assert!(text.contains("--only serve,12:"), "{text}");
        assert!(text.ends_with("sampled were server (7), worker (8)"), "{text}");
        let many = (1..=9).map(|number| thread(number, &format!("w{number}"))).collect();
        let text = NoSamples::NotSelected { wanted, sampled: many }.to_string();
        assert!(text.contains("server (7), w1 (1), w2 (2), w3 (3), w4 (4) and 5 other"), "{text}");
    }
}
