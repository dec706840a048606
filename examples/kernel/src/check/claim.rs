//! The outcome of a claim.

/// The outcome of a claim, with the words and letters of `hwcheck`'s report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The processor does as the claim says.
    Agrees,
    /// It does otherwise.
    Disagrees,
    /// It was not tried.
    NotTried(Reason),
}

/// The reason for which a claim was not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The processor lacks what it is about.
    Absent,
    /// The counter layer refused its operations.
    Driver,
    /// The command line said so.
    Skipped,
}

impl Verdict {
    /// Returns the verdict of a claim that holds or does not.
    pub const fn holds(holds: bool) -> Self {
        if holds { Self::Agrees } else { Self::Disagrees }
    }

    /// Returns the outcome's name in a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Disagrees => "disagrees",
            Self::NotTried(_) => "not-tried",
        }
    }

    /// Returns the word of a QR code: of an outcome, or the reason why there is none.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Agrees | Self::Disagrees => self.name(),
            Self::NotTried(reason) => reason.name(),
        }
    }
}

impl Reason {
    /// Returns the reason's name in a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Driver => "driver",
            Self::Skipped => "skipped",
        }
    }
}

/// A verdict, and the numbers that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The numbers, each with its name.
    pub evidence: [(&'static str, u64); 3],
}

impl Outcome {
    /// The processor lacks what the claim is about.
    pub const ABSENT: Self = Self::not_tried(Reason::Absent);

    /// Creates the outcome of a claim that was not tried.
    pub const fn not_tried(reason: Reason) -> Self {
        Self { verdict: Verdict::NotTried(reason), evidence: [("", 0); 3] }
    }

    /// Creates the outcome of a claim that holds or does not, without numbers.
    pub const fn of(holds: bool) -> Self {
        Self { verdict: Verdict::holds(holds), evidence: [("", 0); 3] }
    }

    /// Adds a number, in place of one that has no name yet.
    pub fn with(mut self, name: &'static str, number: u64) -> Self {
        if let Some(place) = self.evidence.iter_mut().find(|(name, _)| name.is_empty()) {
            *place = (name, number);
        }
        self
    }
}
