//! What the machine allows of perf events, and what helps where it is not enough.
//!
//! Sources: perf_event_open(2); Linux, Documentation/admin-guide/sysctl/kernel.rst,
//! `perf_event_paranoid` and `perf_event_max_sample_rate`, and perf-security.rst; proc(5), `status`.

use core::fmt;
use std::fs;

/// The machine's settings, as far as this process sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// `kernel.perf_event_paranoid`: how much is forbidden to users without the capability.
    pub paranoid: Option<i32>,
    /// `kernel.perf_event_max_sample_rate`: samples per second and processor, beyond which the kernel
    /// pauses an event.
    pub max_rate: Option<u64>,
    /// Whether this process has CAP_PERFMON or CAP_SYS_ADMIN, if only within its container.
    pub capable: bool,
    /// Whether a seccomp filter examines this process's system calls.
    pub filtered: bool,
}

/// The highest `perf_event_paranoid` that allows a user to sample what every processor executes, the
/// kernel's execution on behalf of own commands, and own commands at all. (Beyond 2 is not upstream: Debian
/// and Ubuntu have it.)
const PROCESSORS: i32 = 0;
const KERNEL: i32 = 1;
const OWN: i32 = 2;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

impl Setting {
    /// Reads this machine's.
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (capable, filtered) = parse_status(&status);
        Self {
            paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            max_rate: number("/proc/sys/kernel/perf_event_max_sample_rate"),
            capable,
            filtered,
        }
    }

    /// Says how the kernel's execution could be sampled too, which was forbidden.
    pub fn for_kernel(&self) -> String {
        format!("user mode only: sampling the kernel's execution {}", self.forbidden_above(KERNEL))
    }

    /// Says how the processors' clocks could be used, which was forbidden.
    pub fn for_processors(&self) -> String {
        format!("sampling by the processors' clocks {}", self.forbidden_above(PROCESSORS))
    }

    fn forbidden_above(&self, level: i32) -> String {
        match self.paranoid {
            Some(paranoid) if paranoid > level && !self.capable => format!(
                "needs root, CAP_PERFMON, or kernel.perf_event_paranoid {level}, which is {paranoid}"
            ),
            _ => "is forbidden here".into(),
        }
    }
}

/// What to do where even a user's own commands may not be sampled.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_level = match self.paranoid {
            None => {
                f.write_str("  kernel.perf_event_paranoid cannot be read")?;
                f.write_str(": this kernel may have no perf events.\n")?;
                false
            }
            Some(level @ ..=OWN) => {
                writeln!(f, "  kernel.perf_event_paranoid is {level}, which allows it.")?;
                false
            }
            Some(level) => {
                writeln!(f, "  kernel.perf_event_paranoid is {level}.")?;
                writeln!(f, "  Either lower it:    sudo sysctl kernel.perf_event_paranoid={OWN}")?;
                true
            }
        };
        match (by_level, self.capable) {
            (true, false) => {
                f.write_str("  or run as root, or with the capability CAP_PERFMON.\n")?;
            }
            (true, true) => {
                f.write_str(
                    "  or run outside of the container: CAP_PERFMON within it is not enough.\n",
                )?;
            }
            (false, _) if !self.filtered => {
                f.write_str("  A security module (SELinux, lockdown) may forbid it.\n")?;
            }
            (false, _) => {}
        }
        if self.filtered {
            f.write_str(
                "  A seccomp filter is in force: a container's profile must allow perf_event_open.\n",
            )?;
        }
        f.write_str("  The built-in workload (no COMMAND) needs no permission.")
    }
}

fn number<N: core::str::FromStr>(path: &str) -> Option<N> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether the process with this `/proc/PID/status` is capable and filtered.
fn parse_status(status: &str) -> (bool, bool) {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let capabilities =
        field("CapEff:").and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    let capable = capabilities & (1 << CAP_PERFMON | 1 << CAP_SYS_ADMIN) != 0;
    // 0 is no filter, 1 is strict mode, which has no perf events at all.
    (capable, field("Seccomp:").is_some_and(|mode| mode != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_filters_are_read_from_the_status() {
        let status = |capabilities: &str, seccomp: &str| {
            format!(
                "Name:\tprofile\nCapPrm:\tffffffffffffffff\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\n"
            )
        };
        // Bits 38 and 21, and all but them (capability.h).
        for (capabilities, capable) in [
            ("0000004000000000", true),
            ("0000000000200000", true),
            ("ffffffbfffdfffff", false),
            ("0000000000000000", false),
            ("nonsense", false),
        ] {
            assert_eq!(parse_status(&status(capabilities, "0")), (capable, false));
            assert_eq!(parse_status(&status(capabilities, "2")), (capable, true));
        }
        assert_eq!(parse_status(""), (false, false));
    }

    /// What each setting must say, and must not.
    #[test]
    fn advice_fits_the_setting() {
        let setting =
            |paranoid, capable, filtered| Setting { paranoid, max_rate: None, capable, filtered };
        let (sysctl, root, seccomp, module) = ("sysctl", "as root", "seccomp", "security module");
        for (setting, said, unsaid) in [
            (setting(Some(4), false, false), &["is 4.", sysctl, root][..], &[seccomp, module][..]),
            (setting(Some(3), false, true), &["is 3.", sysctl, root, seccomp], &[module]),
            (
                setting(Some(3), true, true),
                &["is 3.", sysctl, "container", seccomp],
                &[root, module],
            ),
            (
                setting(Some(2), false, false),
                &["is 2, which allows", module],
                &[sysctl, root, seccomp],
            ),
            (
                setting(Some(2), true, true),
                &["is 2, which allows", seccomp],
                &[sysctl, root, module],
            ),
            (setting(Some(-1), false, true), &["is -1, which allows", seccomp], &[sysctl, root]),
            (setting(None, false, false), &["cannot be read", module], &[sysctl, root, seccomp]),
        ] {
            let advice = setting.to_string();
            for part in said {
                assert!(advice.contains(part), "{part:?} is missing for {setting:?}:\n{advice}");
            }
            for part in unsaid {
                assert!(!advice.contains(part), "{part:?} does not fit {setting:?}:\n{advice}");
            }
            assert!(advice.contains("built-in workload"), "{advice}");
        }
    }

    #[test]
    fn the_level_that_would_allow_more_is_named_only_where_the_level_forbids() {
        let setting = |paranoid, capable| Setting { paranoid, capable, ..Setting::default() };
        let ordinary = setting(Some(2), false);
        assert!(ordinary.for_kernel().contains("perf_event_paranoid 1, which is 2"));
        assert!(ordinary.for_processors().contains("perf_event_paranoid 0, which is 2"));
        for other in [setting(Some(0), false), setting(Some(2), true), setting(None, false)] {
            assert!(other.for_kernel().ends_with("forbidden here"), "{}", other.for_kernel());
            assert!(other.for_processors().ends_with("forbidden here"));
        }
        assert!(setting(Some(1), false).for_processors().contains("paranoid 0, which is 1"));
    }
}
