//! Programs run on both, each from the same state; what differs is done twice.

use pmu_virt::registers::{RegisterInfo, RegisterKind};

use crate::programs::comparison::{Comparison, Differs, Operation, claim_of};
use crate::random::Random;
use crate::registers::stop::Stop;
use crate::report::claim::{Claim, Evidence, Outcome};

impl Comparison<'_, '_> {
    /// Reads the registers that are tested without a write: absent ones, and those of capabilities.
    ///
    /// # Errors
    /// A register cannot be reached.
    pub fn read_only(&mut self) -> Result<(), Stop> {
        let claims = ["model.absent", "model.read-only"];
        for register in self.listed.clone() {
            let is_told = claims.iter().any(|claim| claim_of(&register) == Some(claim));
            // The registers in use are known only if the selects are.
            if is_told && register.kind != RegisterKind::GlobalInUse {
                let disagreement = self.execute(Operation::Read(register))?;
                self.keep(disagreement);
            }
            // One of the others is told only if it is not there at all, and programs go on without it.
            if !is_told && let Some(differs) = self.read_bits(&register, 0)? {
                self.left_out.push((register.kind, register.counter));
                self.keep(Some(differs));
            }
        }
        // A register that was only looked for was not compared.
        self.found
            .retain(|claim, evidence| claims.contains(claim) || !evidence.disagreements.is_empty());
        Ok(())
    }

    /// Runs so many programs of this seed on both.
    ///
    /// # Errors
    /// A register cannot be reached, or another owner wrote one.
    pub fn programs(
        &mut self,
        seed: u64,
        programs: u32,
        alone: &dyn Fn() -> bool,
    ) -> Result<(), Stop> {
        let mut random = Random::new(seed);
        let mut sweeps = self.sweeps().into_iter();
        for _ in 0..programs as usize + sweeps.len() {
            if alone() {
                return Err(Stop::Alone);
            }
            self.registers.check_others()?;
            while let Some((claim, differs)) = self.twice(Self::clean)? {
                let is_it = |one: &&RegisterInfo| u64::from(one.address) == differs.register.0;
                let Some(register) = self.listed.iter().find(is_it) else { break };
                self.left_out.push((register.kind, register.counter));
                self.keep(Some((claim, differs)));
            }
            let program = sweeps.next().unwrap_or_else(|| self.program(&mut random));
            let differs = self.twice(|both| both.run(&program))?;
            self.keep(differs);
        }
        self.registers.check_others()
    }

    /// Repeats the work if the answers differ: a real disagreement comes twice.
    fn twice(
        &mut self,
        work: impl Fn(&mut Self) -> Result<Differs, Stop>,
    ) -> Result<Differs, Stop> {
        let Some(first) = work(self)? else { return Ok(None) };
        // A value that another owner wrote must not be overwritten.
        self.registers.check_others()?;
        // Both in the same state again.
        self.clean()?;
        let again = work(self)?;
        self.registers.check_others()?;
        if again.as_ref() != Some(&first) {
            self.found.entry(first.0).or_default().unrepeated += 1;
            return Ok(None);
        }
        Ok(again)
    }

    /// Returns the claims with their outcomes.
    pub fn claims(&self) -> Vec<Claim> {
        let outcome = |evidence: &Evidence| match evidence.disagreements.is_empty() {
            true => Outcome::Agrees,
            false => Outcome::Disagrees,
        };
        let claim = |(id, evidence): (&&str, &Evidence)| Claim {
            id: (*id).to_owned(),
            outcome: outcome(evidence),
            evidence: evidence.clone(),
        };
        self.found.iter().map(claim).collect()
    }

    fn keep(&mut self, differs: Differs) {
        let Some((claim, disagreement)) = differs else { return };
        self.found.entry(claim).or_default().list(disagreement);
    }

    /// Runs a program from a clean state, and returns its first disagreement.
    fn run(&mut self, program: &[Operation]) -> Result<Differs, Stop> {
        for operation in program {
            let differs = self.execute(*operation)?;
            if differs.is_some() {
                return Ok(differs);
            }
        }
        Ok(None)
    }

    /// Stops the counters on both, sets every register to 0, and reads it back.
    fn clean(&mut self) -> Result<Differs, Stop> {
        let agreed = self.registers.agreed;
        let mut first = None;
        let mut order: Vec<_> = agreed.cells().iter().collect();
        order.sort_by_key(|cell| match cell.kind {
            RegisterKind::GlobalControl => 0,
            _ if cell.is_counter() => 2,
            _ => 1,
        });
        let find = |listed: &[RegisterInfo], address| {
            listed.iter().find(|one| one.address == address).copied()
        };
        for cell in order {
            let Some(register) = find(&self.listed, cell.address) else { continue };
            let (_, value) = self.rest(&register);
            let disagreement = self.execute(Operation::Write(register, value))?;
            first = first.or(disagreement);
        }
        let clear = self.registers.address_of(RegisterKind::GlobalStatusClear);
        let status = self.registers.address_of(RegisterKind::GlobalStatus);
        if let Some(register) = clear.and_then(|clear| find(&self.listed, clear)) {
            let bits = agreed.taken() & !agreed.status_found();
            let disagreement = self.execute(Operation::Write(register, bits))?;
            first = first.or(disagreement);
        }
        for address in agreed.cells().iter().map(|cell| cell.address).chain(status) {
            let Some(register) = find(&self.listed, address) else { continue };
            let disagreement = self.execute(Operation::Read(register))?;
            first = first.or(disagreement);
        }
        Ok(first)
    }
}
