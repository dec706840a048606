//! Arm's PMUv3: its registers against data files, its detection, and `Pmu` on a model of it.

mod chained;
mod counting;
mod detection;
mod events;
mod faults;
mod registers;
mod translation;
mod user_mode;
mod world;
