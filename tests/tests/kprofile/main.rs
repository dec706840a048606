//! Profile objects, their lists and their services, as Windows has them.

mod buckets;
mod bytes;
mod dispatch;
mod interval_services;
mod layout;
mod layouts;
mod lists;
mod mailbox;
mod mailbox_machine;
mod memory;
mod objects;
mod owned;
mod processors;
mod processors_random;
mod random;
mod ranges;
mod service;
mod source_list;
mod status;
mod threads;
mod waiting;
mod walk;
