//! The nodes of one leaf, in order of registration.

use super::{Mark, Marks, Slot};
use crate::ids::Ordinal;

/// Above this a leaf keeps its nodes in chunks: inserting into one sorted array would cost what
/// the leaf holds, and equal nodes all stand in one leaf.
const FEW: usize = 64;
/// A chunk that reaches this is cut in two.
const CHUNK: usize = 128;

/// One node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    pub(super) ordinal: Ordinal,
    pub(super) marks: Marks,
    pub(super) slot: Slot,
}

/// A run of nodes, never empty, sorted by ordinal.
#[derive(Debug)]
pub struct Chunk {
    marks: Marks,
    nodes: Vec<Element>,
}

/// Nodes that stand at the same coordinate.
#[derive(Debug)]
pub enum Elements {
    /// Sorted by ordinal.
    Few(FewElements),
    /// The same, for many: each run's ordinals before the next one's.
    Many(Vec<Chunk>),
}

/// The nodes of a small leaf.
#[derive(Debug, Default)]
pub struct FewElements(Vec<Element>);

fn marks_of(nodes: &[Element]) -> Marks {
    Marks::among(nodes.iter().map(|node| node.marks), Marks::ALL)
}

fn insert_sorted(nodes: &mut Vec<Element>, element: Element) {
    let at = nodes.partition_point(|node| node.ordinal < element.ordinal);
    nodes.insert(at, element);
}

fn remove_sorted(nodes: &mut Vec<Element>, ordinal: Ordinal) -> Option<Element> {
    let at = nodes.binary_search_by_key(&ordinal, |node| node.ordinal).ok()?;
    Some(nodes.remove(at))
}

/// The chunk in which `ordinal` stands, if it stands anywhere.
fn chunk_of(chunks: &[Chunk], ordinal: Ordinal) -> usize {
    chunks.partition_point(|chunk| chunk.nodes[0].ordinal <= ordinal).saturating_sub(1)
}

impl Elements {
    pub(super) fn new() -> Self {
        Self::Few(FewElements::default())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.0.len(),
            Self::Many(chunks) => chunks.iter().map(|chunk| chunk.nodes.len()).sum(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Few(few) if few.0.is_empty())
    }

    /// Which of `asked` they have together.
    pub(super) fn marks_among(&self, asked: Marks) -> Marks {
        match self {
            Self::Few(few) => Marks::among(few.0.iter().map(|node| node.marks), asked),
            Self::Many(chunks) => Marks::among(chunks.iter().map(|chunk| chunk.marks), asked),
        }
    }

    pub(super) fn insert(&mut self, element: Element) {
        match self {
            Self::Few(few) if few.0.len() < FEW => insert_sorted(&mut few.0, element),
            Self::Few(few) => {
                let mut nodes = std::mem::take(&mut few.0);
                insert_sorted(&mut nodes, element);
                *self = Self::Many(vec![Chunk { marks: marks_of(&nodes), nodes }]);
            }
            Self::Many(chunks) => {
                let at = chunk_of(chunks, element.ordinal);
                let chunk = &mut chunks[at];
                insert_sorted(&mut chunk.nodes, element);
                chunk.marks = chunk.marks.or(element.marks);
                if chunk.nodes.len() >= CHUNK {
                    let nodes = chunk.nodes.split_off(CHUNK / 2);
                    chunk.marks = marks_of(&chunk.nodes);
                    chunks.insert(at + 1, Chunk { marks: marks_of(&nodes), nodes });
                }
            }
        }
    }

    /// Takes a node out; whether it was there.
    pub(super) fn remove(&mut self, ordinal: Ordinal) -> bool {
        let chunks = match self {
            Self::Few(few) => return remove_sorted(&mut few.0, ordinal).is_some(),
            Self::Many(chunks) => chunks,
        };
        let at = chunk_of(chunks, ordinal);
        let chunk = &mut chunks[at];
        let Some(removed) = remove_sorted(&mut chunk.nodes, ordinal) else {
            return false;
        };
        if removed.marks != Marks::NONE {
            chunk.marks = marks_of(&chunk.nodes);
        }
        if chunk.nodes.is_empty() {
            chunks.remove(at);
        }
        // Half of the bound, so that one node coming and going does not convert twice.
        if let [only] = &mut chunks[..]
            && only.nodes.len() < FEW / 2
        {
            *self = Self::Few(FewElements(std::mem::take(&mut only.nodes)));
        }
        true
    }

    /// Exchanges the marks of one node; whether it was there.
    pub(super) fn mark(&mut self, ordinal: Ordinal, marks: Marks) -> bool {
        let set = |nodes: &mut [Element]| match nodes.binary_search_by_key(&ordinal, |node| node.ordinal) {
            Ok(at) => {
                nodes[at].marks = marks;
                true
            }
            Err(_) => false,
        };
        match self {
            Self::Few(few) => set(&mut few.0),
            Self::Many(chunks) => {
                let at = chunk_of(chunks, ordinal);
                let found = set(&mut chunks[at].nodes);
                chunks[at].marks = marks_of(&chunks[at].nodes);
                found
            }
        }
    }

    /// Gives `mark` to the nodes that `member` names, and takes it from all others.
    pub(super) fn assign(&mut self, mark: Mark, member: &impl Fn(Slot) -> bool) {
        let assign = |nodes: &mut [Element]| {
            for node in nodes {
                node.marks = node.marks.with(mark, member(node.slot));
            }
        };
        match self {
            Self::Few(few) => assign(&mut few.0),
            Self::Many(chunks) => {
                for chunk in chunks {
                    assign(&mut chunk.nodes);
                    chunk.marks = marks_of(&chunk.nodes);
                }
            }
        }
    }

    /// Where the node with this ordinal stands, and its marks.
    pub(super) fn find(&self, ordinal: Ordinal) -> Option<(Slot, Marks)> {
        let nodes = match self {
            Self::Few(few) => &few.0,
            Self::Many(chunks) => &chunks[chunk_of(chunks, ordinal)].nodes,
        };
        let at = nodes.binary_search_by_key(&ordinal, |node| node.ordinal).ok()?;
        Some((nodes[at].slot, nodes[at].marks))
    }

    /// The first node in order of registration that has the marks and that `accept` accepts.
    #[inline]
    pub fn first(&self, wanted: Marks, mut accept: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let mut first = |nodes: &[Element]| {
            nodes
                .iter()
                .filter(|node| node.marks.hold(wanted))
                .map(|node| node.slot)
                .find(|&slot| accept(slot))
        };
        match self {
            Self::Few(few) => first(&few.0),
            Self::Many(chunks) => {
                chunks.iter().filter(|chunk| chunk.marks.hold(wanted)).find_map(|chunk| first(&chunk.nodes))
            }
        }
    }

    /// Checks order and the marks of chunks.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self::Many(chunks) = self else { return Ok(()) };
        let ordered = chunks.iter().flat_map(|chunk| &chunk.nodes).map(|node| node.ordinal).is_sorted();
        if !ordered || chunks.iter().any(|chunk| chunk.nodes.is_empty()) {
            return Err("the chunks of a leaf are out of order".to_owned());
        }
        if chunks.iter().any(|chunk| chunk.marks != marks_of(&chunk.nodes)) {
            return Err("the marks of a chunk are stale".to_owned());
        }
        Ok(())
    }
}
