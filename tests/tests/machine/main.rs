//! Detection: the interface that a processor has, by its CPUID and the version of Windows.

mod cpuid;
mod debug_store;
mod interfaces;
mod mock_platform;
mod other_vendors;
mod profiles;
mod versions;
