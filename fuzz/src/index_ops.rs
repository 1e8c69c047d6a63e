//! Runs operations from bytes on [`DistBuckets`] and on the oracle, and compares the answers.
//!
//! Value ranges are small on purpose. An index goes wrong at ties, exact fits and emptied buckets, and wide
//! ranges would seldom produce them.

use std::ops::ControlFlow;

use arbitrary::{Arbitrary, Result as Drawn, Unstructured};
use wharf_core::ids::Ordinal;
use wharf_core::index::tree::Direction;
use wharf_core::index::{
    Candidates, Coordinate, DistBuckets, Mark, Marks, PolicyState, ResourceVector, Slot, Visits,
};
use wharf_core::limits::AMOUNT_MAX;
use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;

use crate::geometry::Drawn as DrawnGeometry;
use crate::oracle::{Choice, LinearIndex, Step, reference_walk};

/// Limits of one input, in operations and nodes. They are large enough for leaves and levels to split, and
/// small enough that an input runs quickly.
const OPERATIONS_MAX: usize = 256;
const NODES_MAX: usize = 320;
/// After how many operations the whole index is compared.
const OPERATIONS_PER_CHECK: usize = 8;

/// Values of a node or a request, as small numbers.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Values {
    cpu: u8,
    memory: u8,
    whole_gpus: u8,
    gpu_part: u8,
    custom: [u8; 2],
}

/// Maps a byte to an amount. About one value in sixty lies at the far end, where all coordinates are equal.
fn amount(value: u8) -> Amount {
    const FAR: u8 = 252;
    let units = if value >= FAR { AMOUNT_MAX - i64::from(u8::MAX - value) } else { i64::from(value % 12) };
    Amount::try_from_units(units).expect("both ends are in range")
}

impl Values {
    /// Returns some bits of the values, used as the node's marks.
    fn mark_bits(self) -> u8 {
        (self.cpu >> 4) ^ (self.memory >> 2) ^ self.gpu_part
    }

    fn vector(self) -> ResourceVector {
        ResourceVector {
            cpu: amount(self.cpu),
            memory: amount(self.memory),
            whole_gpus: u16::from(self.whole_gpus % 4),
            largest_gpu_part: u16::from(self.gpu_part % 5) * 2500,
            custom: [amount(self.custom[0]), amount(self.custom[1]), Amount::ZERO, Amount::ZERO],
        }
    }
}

/// The nodes that a search may return.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Named {
    All,
    /// The nodes with bit `slot % 8` set.
    Bits(u8),
    /// These nodes, walked one by one.
    Walk([u8; 5]),
    /// The nodes with a mark.
    Marked(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Insert(Values),
    /// Inserts many equal nodes, more than a leaf keeps in a sorted array.
    InsertMany(Values, u8),
    Update(u8, Values),
    /// Removes a node from the index. It keeps its place in the order of registration.
    Leave(u8),
    /// Inserts a node that left before.
    Return(u8, Values),
    /// Removes a node for good and frees its slot for another node.
    Remove(u8),
    Select(PolicyName, u8, Values, Named),
    Leaves(bool, Values, u8),
    /// Gives a node other marks.
    Mark(u8, u8),
    /// Gives one mark to exactly the slots with bit `slot % 8` set.
    Assign(u8, u8),
    /// Changes every θ.
    Regrain([u8; 7]),
}

/// A [`Policy`] that is drawn from the input.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum PolicyName {
    LeastFit,
    BestFit,
    FirstFit,
    NextFit,
    Random,
    Fgd,
    LeastStranded,
    Spread,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::LeastFit => Self::LeastFit,
            PolicyName::BestFit => Self::BestFit,
            PolicyName::FirstFit => Self::FirstFit,
            PolicyName::NextFit => Self::NextFit,
            PolicyName::Random => Self::Random,
            PolicyName::Fgd => Self::Fgd,
            PolicyName::LeastStranded => Self::LeastStranded,
            PolicyName::Spread => Self::Spread,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Known {
    slot: Slot,
    ordinal: u64,
    existing: bool,
    /// Bit `i` represents `MARKS[i]`.
    marks: u8,
}

/// The marks in use: both ends of the word and some in between.
const MARKS: [u8; 4] = [0, 1, 31, 63];

fn mark(number: usize) -> Mark {
    Mark::new(MARKS[number % MARKS.len()])
}

fn is_marked(known: &[Known], slot: Slot, number: u8) -> bool {
    let number = usize::from(number) % MARKS.len();
    known.iter().any(|known| known.slot == slot && known.marks >> number & 1 == 1)
}

fn marks(bits: u8) -> Marks {
    let held = (0..MARKS.len()).filter(|number| bits >> number & 1 == 1);
    held.fold(Marks::NONE, |marks, number| marks.with(mark(number), true))
}

/// The index and the oracle, which receive the same operations.
struct Pair {
    index: DistBuckets,
    oracle: LinearIndex,
    shape: DrawnGeometry,
    state: PolicyState,
    known: Vec<Known>,
    free: Vec<Slot>,
    last_ordinal: u64,
    last_slot: Slot,
}

/// Runs the operations encoded in `data` and compares every answer.
///
/// # Errors
/// Returns the first difference and the operation that showed it.
pub fn run_index_ops(data: &[u8]) -> Result<(), String> {
    let mut bytes = Unstructured::new(data);
    let Ok(shape) = DrawnGeometry::arbitrary(&mut bytes) else {
        return Ok(());
    };
    let mut pair = Pair::new(shape);
    for number in 0..OPERATIONS_MAX {
        let Some(operation) = next_operation(&mut bytes) else {
            break;
        };
        // Answers are compared each time. The whole index takes far longer, and what is wrong there stays so.
        let is_checked = number % OPERATIONS_PER_CHECK == OPERATIONS_PER_CHECK - 1;
        let applied = pair.apply(operation);
        applied.and_then(|()| if is_checked { pair.check() } else { Ok(()) }).map_err(|difference| {
            format!("operation {number}, {operation:?} over {shape:?}: {difference}")
        })?;
    }
    pair.check().map_err(|difference| format!("at the end, over {shape:?}: {difference}"))
}

fn next_operation(bytes: &mut Unstructured<'_>) -> Option<Operation> {
    let drawn: Drawn<Operation> = if bytes.is_empty() { return None } else { bytes.arbitrary() };
    drawn.ok()
}

impl Pair {
    fn new(shape: DrawnGeometry) -> Self {
        let (geometry, space) = shape.both();
        Self {
            oracle: LinearIndex::new(space),
            index: DistBuckets::new(geometry),
            shape,
            state: PolicyState { next_fit: Ordinal(0), rng: Rng::new(1) },
            known: Vec::new(),
            free: Vec::new(),
            last_ordinal: 0,
            last_slot: 0,
        }
    }

    fn pick(&self, pick: u8, existing: bool) -> Option<usize> {
        let of_kind: Vec<usize> =
            (0..self.known.len()).filter(|&at| self.known[at].existing == existing).collect();
        (!of_kind.is_empty()).then(|| of_kind[usize::from(pick) % of_kind.len()])
    }

    fn insert(&mut self, values: Values) {
        if self.known.len() >= NODES_MAX {
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.last_slot += 1;
            self.last_slot
        });
        self.last_ordinal += 1;
        // One node in four has no mark.
        let bits = if self.last_ordinal.is_multiple_of(4) { 0 } else { values.mark_bits() };
        let known = Known { slot, ordinal: self.last_ordinal, existing: true, marks: bits };
        self.known.push(known);
        self.set_values(known, values);
    }

    fn set_values(&mut self, known: Known, values: Values) {
        self.index.insert(known.slot, Ordinal(known.ordinal), &values.vector(), marks(known.marks));
        self.oracle.insert(known.slot, known.ordinal, values.vector());
    }

    fn leave(&mut self, at: usize) {
        let slot = self.known[at].slot;
        self.known[at].existing = false;
        self.index.remove(slot);
        self.oracle.remove(slot);
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Insert(values) => self.insert(values),
            Operation::InsertMany(values, count) => {
                for _ in 0..count % 80 {
                    self.insert(values);
                }
            }
            Operation::Update(pick, values) => {
                if let Some(at) = self.pick(pick, true) {
                    let slot = self.known[at].slot;
                    self.index.update(slot, &values.vector());
                    self.oracle.update(slot, values.vector());
                }
            }
            Operation::Leave(pick) => {
                if let Some(at) = self.pick(pick, true) {
                    self.leave(at);
                }
            }
            Operation::Return(pick, values) => {
                if let Some(at) = self.pick(pick, false) {
                    self.known[at].existing = true;
                    self.set_values(self.known[at], values);
                }
            }
            Operation::Remove(pick) => {
                if let Some(at) = self.pick(pick, true) {
                    self.leave(at);
                    self.free.push(self.known.remove(at).slot);
                }
            }
            Operation::Mark(pick, bits) => {
                if let Some(at) = self.pick(pick, true) {
                    self.known[at].marks = bits;
                    self.index.mark(self.known[at].slot, marks(bits));
                }
            }
            Operation::Assign(number, bits) => {
                let number = usize::from(number) % MARKS.len();
                let member = |slot: Slot| bits >> (slot % 8) & 1 == 1;
                for known in self.known.iter_mut() {
                    known.marks = known.marks & !(1 << number) | u8::from(member(known.slot)) << number;
                }
                self.index.assign(mark(number), member);
            }
            Operation::Regrain(granularity) => {
                self.shape.granularity = granularity;
                let (geometry, space) = self.shape.both();
                self.oracle.regrain(space);
                let oracle = &self.oracle;
                self.index.regrain(geometry, |slot| oracle.available(slot));
            }
            Operation::Select(policy, order, asked, named) => {
                let order = usize::from(order) % self.index.geometry().order_count();
                return self.select(policy.into(), order, asked, named);
            }
            Operation::Leaves(greatest, asked, bits) => {
                let direction = if greatest { Direction::Greatest } else { Direction::Smallest };
                return self.leaves(direction, asked, bits);
            }
        }
        Ok(())
    }

    fn select(&mut self, policy: Policy, order: usize, asked: Values, named: Named) -> Result<(), String> {
        let asked = asked.vector();
        let mut walk: Vec<Slot> = match named {
            Named::Walk(picks) if !self.known.is_empty() => {
                picks.iter().map(|&pick| self.known[usize::from(pick) % self.known.len()].slot).collect()
            }
            _ => Vec::new(),
        };
        walk.sort_unstable();
        walk.dedup();
        let known = &self.known;
        let member = |slot: Slot| match named {
            Named::All => true,
            Named::Bits(bits) => bits >> (slot % 8) & 1 == 1,
            Named::Walk(_) => walk.contains(&slot),
            Named::Marked(number) => is_marked(known, slot, number),
        };
        let candidates = match named {
            Named::Walk(_) => Candidates::Walk(&walk),
            Named::Marked(number) => Candidates::Marked(mark(usize::from(number))),
            Named::All | Named::Bits(_) => Candidates::All,
        };
        let expected = self.oracle.select(order, policy, &asked, member);
        let oracle = &self.oracle;
        let state = &mut self.state;
        let mut visits = Visits::default();
        let accept = |slot| oracle.holds(slot, &asked) && member(slot);
        let answer =
            self.index.select_in_order(order, policy, &asked, candidates, state, &mut visits, accept);
        let any = self.index.any(&asked, candidates, &mut Visits::default(), |slot| {
            oracle.holds(slot, &asked) && member(slot)
        });
        if any != (expected != Choice::Nothing) {
            return Err(format!("any node: {any}, the oracle {expected:?}"));
        }
        if !expected.allows(answer.as_ref()) {
            return Err(format!("the index answers {answer:?}, the oracle {expected:?}"));
        }
        if self.state.next_fit.0 != self.oracle.cursor() {
            return Err(format!("the cursor is at {:?}, expected {}", self.state, self.oracle.cursor()));
        }
        Ok(())
    }

    fn leaves(&self, direction: Direction, asked: Values, bits: u8) -> Result<(), String> {
        let asked = asked.vector();
        let member = |slot: Slot| bits >> (slot % 8) & 1 == 1;
        let nodes: Vec<(Vec<i64>, bool)> =
            self.oracle.coordinates().into_iter().map(|(slot, at)| (at, member(slot))).collect();
        let mut expected = Vec::new();
        reference_walk(&nodes, direction, &self.oracle.asked(&asked), |step| {
            if let Step::Yielded(leaf) = step {
                expected.push(leaf);
            }
            ControlFlow::Continue(())
        });
        let dimensions = self.index.geometry().dimension_count();
        let yielded: Vec<Vec<i64>> = self
            .index
            .leaves(direction, &asked, member)
            .iter()
            .map(|leaf| steps_of(leaf, dimensions))
            .collect();
        if yielded == expected {
            Ok(())
        } else {
            Err(format!("the index yields the leaves {yielded:?}, the reference walk {expected:?}"))
        }
    }

    /// Checks what must hold after every operation.
    fn check(&mut self) -> Result<(), String> {
        self.index.check()?;
        let dimensions = self.index.geometry().dimension_count();
        let highest = steps_of(&self.index.highest(), dimensions);
        // The index reports an upper bound of the coordinates.
        let covered = highest.iter().zip(&self.oracle.highest()).all(|(said, highest)| said >= highest);
        if (self.index.len(), self.index.bucket_count(), covered)
            != (self.oracle.len(), self.oracle.bucket_count(), true)
        {
            return Err(format!(
                "{} nodes in {} buckets up to {highest:?}, expected {} in {} up to {:?}",
                self.index.len(),
                self.index.bucket_count(),
                self.oracle.len(),
                self.oracle.bucket_count(),
                self.oracle.highest()
            ));
        }
        for (slot, expected) in self.oracle.coordinates() {
            let actual = self.index.coordinate(slot).map(|at| steps_of(&at, dimensions));
            if actual.as_ref() != Some(&expected) {
                return Err(format!("slot {slot} is at {actual:?}, expected {expected:?}"));
            }
        }
        for known in self.known.iter().filter(|known| known.existing) {
            if self.index.marks(known.slot) != Some(marks(known.marks)) {
                return Err(format!("slot {} has other marks than it was given", known.slot));
            }
        }
        Ok(())
    }
}

fn steps_of(coordinate: &Coordinate, dimensions: usize) -> Vec<i64> {
    coordinate.0[..dimensions].iter().map(|&step| i64::from(step)).collect()
}
