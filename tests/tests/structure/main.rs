//! The structure of the crates: no circles, floors, the same files in both vendor crates, and short ways through them.

mod circles;
mod registers_of_x86;
mod source_tree;
mod tests_of_modules;
mod vendor_crates;
mod ways;
