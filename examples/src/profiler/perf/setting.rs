//! The machine's permissions on perf events, and advice that fits them.
//!
//! Sources: perf_event_open(2); Linux, Documentation/admin-guide/sysctl/kernel.rst,
//! `perf_event_paranoid` and `perf_event_max_sample_rate`, and perf-security.rst; proc(5), `status`.

use core::fmt;
use core::str::FromStr;
use std::fs;

/// The machine's settings, as far as this process sees them. Displayed, they are advice to a user who may
/// not even sample own commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// `kernel.perf_event_paranoid`: the higher, the more is forbidden without a capability.
    pub paranoid: Option<i32>,
    /// `kernel.perf_event_max_sample_rate`: samples per second and processor, beyond which the kernel
    /// pauses an event.
    pub max_rate: Option<u64>,
    /// Set if this process has CAP_PERFMON or CAP_SYS_ADMIN, which may be valid in its container only.
    pub capable: bool,
    /// Set if a seccomp filter examines this process's system calls.
    pub filtered: bool,
}

/// The highest `perf_event_paranoid` at which any user may sample whole processors.
const SYSTEM_WIDE: i32 = 0;

/// The highest at which any user may sample the kernel's execution for own commands.
const KERNEL: i32 = 1;

/// The highest at which any user may sample own commands. (Debian and Ubuntu have levels above.)
const OWN: i32 = 2;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

impl Setting {
    /// Reads this machine's settings.
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

    /// Says what sampling the kernel's execution needs, where that was forbidden.
    pub fn kernel_advice(&self) -> String {
        format!("user mode only: sampling the kernel's execution {}", self.needed(KERNEL))
    }

    /// Says what sampling whole processors needs, where that was forbidden.
    pub fn system_wide_advice(&self) -> String {
        format!("sampling whole processors {}", self.needed(SYSTEM_WIDE))
    }

    fn needed(&self, level: i32) -> String {
        match self.paranoid {
            Some(paranoid) if paranoid > level && !self.capable => format!(
                "needs root, CAP_PERFMON or kernel.perf_event_paranoid {level} (it is {paranoid})"
            ),
            _ => "is forbidden here".into(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.paranoid {
            None => "cannot be read".into(),
            Some(level @ ..=OWN) => format!("is {level}, which allows it"),
            Some(level) => format!("is {level}"),
        };
        writeln!(f, "  kernel.perf_event_paranoid {level}.")?;
        if self.paranoid > Some(OWN) {
            writeln!(f, "  Either lower it:    sudo sysctl kernel.perf_event_paranoid={OWN}")?;
            f.write_str(if self.capable {
                "  or leave the container: CAP_PERFMON within it is not enough.\n"
            } else {
                "  or run as root, or with the capability CAP_PERFMON.\n"
            })?;
        } else if !self.filtered {
            f.write_str("  A security module (SELinux, lockdown) may forbid it.\n")?;
        }
        if self.filtered {
            f.write_str("  A seccomp filter is in force: it must allow perf_event_open.\n")?;
        }
        f.write_str("  The built-in workload (no COMMAND) needs no permission.")
    }
}

fn number<N: FromStr>(path: &str) -> Option<N> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Parses `/proc/PID/status`: returns whether the process is capable, and whether it is filtered.
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

    /// The table has what the advice must contain, and what it must not.
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
        assert!(ordinary.kernel_advice().contains("perf_event_paranoid 1 (it is 2)"));
        assert!(ordinary.system_wide_advice().contains("perf_event_paranoid 0 (it is 2)"));
        for other in [setting(Some(0), false), setting(Some(2), true), setting(None, false)] {
            assert!(other.kernel_advice().ends_with("forbidden here"), "{}", other.kernel_advice());
            assert!(other.system_wide_advice().ends_with("forbidden here"));
        }
        assert!(setting(Some(1), false).system_wide_advice().contains("paranoid 0 (it is 1)"));
    }
}
