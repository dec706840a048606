//! An object of this crate, as Windows would lay it out for a debugger.

use pmu_core::frame::ProcessId;

use crate::affinity::Affinity;
use crate::compat::kprofile::{KProfile, ListEntry, Role};
use crate::compat::layout::Layout;
use crate::compat::object_type::ObjectType;
use crate::object::action::Action;
use crate::object::basic::Basic;
use crate::object::profile_object::ProfileObject;

impl ProfileObject<'_> {
    /// Returns this profile object as a `KPROFILE`, for a debugger. The members have the values that Windows would set,
    /// except the list entry.
    ///
    /// Both addresses in the list entry are 0. For a callback object, `callback` is the address that
    /// [`ProfileCallback::routine`](crate::ProfileCallback::routine) returns, and `context` is the address of the
    /// callback's data.
    pub fn to_kprofile(&self) -> KProfile {
        let (object_type, role, affinity) = match self.action() {
            Action::Basic(basic) => (
                ObjectType::basic_of(self.rules().version),
                role_of(basic),
                match basic.affinity {
                    Affinity::ALL => {
                        Layout::of(self.rules()).map_or(Affinity::ALL, Layout::processors)
                    }
                    affinity => affinity,
                },
            ),
            Action::Callback(callback) => (
                ObjectType::Callback,
                Role::Callback {
                    callback: callback.routine(),
                    context: core::ptr::from_ref(*callback).cast::<()>() as usize as u64,
                },
                Affinity::EMPTY,
            ),
        };
        KProfile {
            object_type,
            link: ListEntry::default(),
            process: self.process().map_or(0, ProcessId::get),
            role,
            affinity,
            source: self.source(),
            started: self.is_started(),
        }
    }
}

fn role_of(basic: &Basic<'_>) -> Role {
    Role::Basic {
        range_base: basic.base,
        range_limit: basic.limit,
        bucket_shift: basic.bucket.shift(),
        buffer: basic.buffer.as_ptr() as usize as u64,
        segment: basic.segment.into(),
    }
}
