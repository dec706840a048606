//! The page that user mode reads, for programs that are written for Linux: its layout, and every event's count and
//! times by the loop of Linux' header, after each operation and each interrupt.

mod layout;
mod reading;
