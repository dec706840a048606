//! The action of a profile object.

use crate::object::basic::Basic;
use crate::object::callback::ProfileCallback;

#[allow(clippy::large_enum_variant)] // There is nowhere else to put it.
pub(crate) enum Action<'b> {
    Basic(Basic<'b>),
    Callback(&'b dyn ProfileCallback),
}
