#![doc = include_str!("../README.md")]

pub mod listing;
pub mod machine;
pub mod output;
