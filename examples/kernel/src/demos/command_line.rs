//! The words of the command line.

/// A copy of a word, since the loader's memory is not this kernel's. What does not fit is cut off.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    bytes: [u8; 128],
    len: usize,
}

impl Word {
    fn new(text: &str) -> Self {
        let mut bytes = [0; 128];
        let len = text.floor_char_boundary(bytes.len());
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { bytes, len }
    }

    /// Returns the word.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }
}

/// The words of the command line that concern this kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandLine {
    /// `events`: only the events that are opened; no profile.
    pub events: bool,
    /// `exact`: the machine counts exactly; check what was counted by hand.
    pub exact: bool,
    /// `event=NAME`: count the event with this name.
    pub event: Option<Word>,
    /// `freeze`: let the processor stop the counters by itself while an interrupt is serviced.
    pub freeze: bool,
    /// `check`: claims of the processor, and nothing else.
    pub check: bool,
    /// `skip=ID`: claims that are not tried, at most as many.
    pub skipped: [Option<Word>; 8],
    /// `quick`: fewer samples.
    pub quick: bool,
    /// `trace`: send the trace to the debug console, with as many samples as a profile has.
    pub trace: bool,
    /// `samples=N`: how many samples a profile is to have.
    pub samples: Option<u32>,
}

impl CommandLine {
    /// Reads the words of a text. Unknown words are left to others.
    pub fn parse(text: &str) -> Self {
        let mut line = Self::default();
        for word in text.split_ascii_whitespace() {
            match word {
                "check" => line.check = true,
                "events" => line.events = true,
                "exact" => line.exact = true,
                "freeze" => line.freeze = true,
                "quick" => line.quick = true,
                "trace" => line.trace = true,
                _ => {
                    if let Some(number) = word.strip_prefix("samples=") {
                        line.samples = number.parse().ok();
                    } else if let Some(id) = word.strip_prefix("skip=") {
                        if let Some(place) = line.skipped.iter_mut().find(|place| place.is_none()) {
                            *place = Some(Word::new(id));
                        }
                    } else if let Some(name) = word.strip_prefix("event=") {
                        line.event = Some(Word::new(name));
                    }
                }
            }
        }
        line
    }

    /// Returns whether the claim with this id is not to be tried.
    pub fn skips(&self, id: &str) -> bool {
        self.skipped.iter().flatten().any(|skipped| skipped.as_str() == id)
    }

    /// Returns the number of samples that each profile is to have.
    pub fn samples(&self) -> u64 {
        let usual = match self {
            Self { exact: true, .. } => 5,
            Self { quick: true, .. } => 200,
            _ => 1_500,
        };
        self.samples.map_or(usual, u64::from)
    }
}
