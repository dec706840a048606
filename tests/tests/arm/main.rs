//! Arm's PMUv3: its registers against data files, its detection, and `Pmu` on a model of it.

mod detection;
mod registers;
