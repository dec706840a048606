//! The commands in documents, the tests that documents name, and the texts of errors.

mod commands;
mod errors;
mod kprofile_readme;
mod links;
mod operations;
mod steps;
