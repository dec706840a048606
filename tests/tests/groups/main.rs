//! Groups of events, which are counted together or not at all.

mod assignment;
mod attack;
mod bad_input;
mod closed;
mod exclusive;
mod extra;
mod joined;
mod leaving;
mod members;
mod parts;
mod together;
mod turns;
