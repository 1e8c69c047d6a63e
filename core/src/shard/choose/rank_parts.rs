//! The ranks of all nodes for one kind of request, computed in words of 64 nodes. Sets of nodes are split by
//! one criterion after the other.

use crate::broken::{Broken, broken};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::label_index::LabelIndex;
use super::node_set::{Bits, LookedAt, NodeSet};
use super::rankings::RankKey;
use crate::index::Slot;
use crate::limits::RANK_PARTS_MAX;
use crate::memory;
use crate::node::{NodeSpec, Taint};
use crate::request::{Rank, RankRules, shunned};
use crate::shard::books::NodeTable;

/// The inputs of ranks other than labels: nodes by their taints, and the nodes with GPUs.
#[derive(Default)]
pub(crate) struct Traits {
    by_taints: BTreeMap<Arc<[Taint]>, NodeSet>,
    with_gpus: NodeSet,
    /// The taints under which each node is listed, by slot.
    known: Vec<Option<Arc<[Taint]>>>,
    tainted: usize,
}

impl Traits {
    /// Returns the number of nodes with taints.
    pub(crate) fn tainted(&self) -> usize {
        self.tainted
    }

    /// Notes that a node joined, changed, or left.
    pub(crate) fn set(&mut self, slot: Slot, spec: Option<&NodeSpec>) {
        if self.known.len() <= slot as usize {
            self.known.resize(slot as usize + 1, None);
        }
        let slots = self.known.len();
        if spec.is_some_and(|spec| spec.gpus > 0) {
            self.with_gpus.insert(slot, slots);
        } else {
            self.with_gpus.remove(slot, slots);
        }
        assert!(self.with_gpus.len() <= slots, "more nodes have GPUs than there are slots");
        let taints = spec.map_or(&[][..], |spec| spec.taints.as_slice());
        if self.known[slot as usize].as_deref().unwrap_or(&[]) == taints {
            return;
        }
        if let Some(before) = self.known[slot as usize].take() {
            self.tainted = self.tainted.checked_sub(1).expect("a tainted node is counted");
            let nodes = self.by_taints.get_mut(&before).expect("a node is found by its taints");
            let others = nodes.len() - 1;
            nodes.remove(slot, slots);
            assert!(nodes.len() == others, "slot {slot} is not found by its taints");
            if nodes.len() == 0 {
                self.by_taints.remove(&before);
            }
        }
        if !taints.is_empty() {
            self.tainted += 1;
            let known = self.by_taints.get_key_value(taints).map(|(taints, _)| Arc::clone(taints));
            let taints: Arc<[Taint]> = known.unwrap_or_else(|| taints.into());
            self.by_taints.entry(Arc::clone(&taints)).or_default().insert(slot, slots);
            self.known[slot as usize] = Some(taints);
        }
        assert!(self.by_taints.len() <= self.tainted, "taints are known that no node has");
    }

    /// Returns the bytes used, without the texts, which belong to the nodes.
    pub(crate) fn memory(&self) -> u64 {
        let sets = memory::of_btree(self.by_taints.len(), size_of::<(Arc<[Taint]>, NodeSet)>());
        let of_set =
            |(taints, nodes): (&Arc<[Taint]>, &NodeSet)| size_of_val(&**taints) as u64 + nodes.memory();
        sets + self.by_taints.iter().map(of_set).sum::<u64>()
            + self.with_gpus.memory()
            + memory::of_vec(&self.known)
    }

    /// Checks that every node is listed under exactly its taints and GPUs.
    pub(crate) fn check(&self, nodes: &NodeTable) -> Result<(), Broken> {
        let mut with_gpus = Bits::default();
        self.with_gpus.apply(&mut with_gpus, true, &mut LookedAt::default());
        let mut counted = 0;
        for (slot, hot, cold) in nodes.iter() {
            let spec = &cold.registration.spec;
            counted += usize::from(spec.gpus > 0);
            let taints = self.known.get(slot as usize).and_then(Option::as_deref).unwrap_or(&[]);
            if taints != spec.taints.as_slice() || with_gpus.contains(slot) != (spec.gpus > 0) {
                return Err(broken!("node {} is not found by its taints and GPUs", hot.id));
            }
        }
        let found: usize = self.by_taints.values().map(NodeSet::len).sum();
        if counted == with_gpus.len() && found == self.tainted {
            return Ok(());
        }
        Err(broken!(
            "{} nodes with GPUs of {counted}, {found} with taints of {}",
            with_gpus.len(),
            self.tainted
        ))
    }
}

/// Eligible nodes by rank, and the nodes that a taint excludes.
pub(crate) struct Parts {
    pub(crate) by_rank: BTreeMap<Rank, Bits>,
    pub(crate) tainted: Bits,
}

/// Nodes that are equal in all criteria so far.
struct Part {
    alternative: usize,
    shunned: bool,
    has_gpu: bool,
    sum: u16,
    nodes: Bits,
}

/// Splits each part in two: the nodes in `nodes`, to which `change` is applied, and the others.
fn cut(parts: &mut Vec<Part>, nodes: &Bits, looked_at: &mut LookedAt, change: impl Fn(&mut Part)) {
    let whole = std::mem::take(parts);
    for mut outside in whole {
        looked_at.words += 2 * outside.nodes.words();
        let mut inside = Part { nodes: outside.nodes.clone(), ..outside };
        inside.nodes.intersect(nodes);
        let all = outside.nodes.len();
        outside.nodes.subtract(nodes);
        assert!(inside.nodes.len() + outside.nodes.len() == all, "a cut loses nodes");
        change(&mut inside);
        parts.extend([inside, outside].into_iter().filter(|part| part.nodes.len() > 0));
    }
}

impl Parts {
    /// Returns the parts of all nodes. `None` if there are so many that it is cheaper to rank each node.
    pub(crate) fn of(
        key: &RankKey,
        labels: &LabelIndex,
        traits: &Traits,
        looked_at: &mut LookedAt,
    ) -> Option<Self> {
        let rules = key.rules.as_deref();
        let mut parts = Self::selected(key, labels, looked_at);
        let (tainted, less_wanted) = Self::by_taints(traits, rules, looked_at);
        let mut kept_away = Bits::default();
        for part in &mut parts {
            looked_at.words += 2 * part.nodes.words();
            let mut away = part.nodes.clone();
            away.intersect(&tainted);
            kept_away.unite(&away);
            let all = part.nodes.len();
            part.nodes.subtract(&tainted);
            assert!(away.len() + part.nodes.len() == all, "taints exclude others than those that have them");
        }
        parts.retain(|part| part.nodes.len() > 0);
        if less_wanted.len() > 0 {
            cut(&mut parts, &less_wanted, looked_at, |part| part.shunned = true);
        }
        if key.avoid_gpu {
            let mut with_gpus = Bits::default();
            traits.with_gpus.apply(&mut with_gpus, true, looked_at);
            cut(&mut parts, &with_gpus, looked_at, |part| part.has_gpu = true);
        }
        for (weight, selector) in rules.map_or(&[][..], RankRules::preferred) {
            let preferred = labels.members(selector, looked_at);
            cut(&mut parts, &preferred, looked_at, |part| part.sum += u16::from(*weight));
            if parts.len() > RANK_PARTS_MAX {
                return None;
            }
        }
        let mut by_rank: BTreeMap<Rank, Bits> = BTreeMap::new();
        for part in parts {
            let rank = Rank::new(part.alternative, part.shunned, part.has_gpu, part.sum);
            let nodes = by_rank.entry(rank).or_default();
            let others = nodes.len();
            nodes.unite(&part.nodes);
            assert!(nodes.len() == others + part.nodes.len(), "a node is twice of rank {rank:?}");
        }
        Some(Self { by_rank, tainted: kept_away })
    }

    /// Returns the nodes of the selector, and for each fallback those that match none before it.
    fn selected(key: &RankKey, labels: &LabelIndex, looked_at: &mut LookedAt) -> Vec<Part> {
        let of_own = |selector| labels.members(selector, looked_at);
        let own = key.selector.as_deref().map_or_else(|| labels.all().clone(), of_own);
        let mut taken = own.clone();
        let part = |alternative, nodes| Part { alternative, shunned: false, has_gpu: false, sum: 0, nodes };
        let mut parts = vec![part(0, own)];
        let fallbacks = key.rules.as_deref().map_or(&[][..], RankRules::fallbacks);
        for (alternative, selector) in (1..).zip(fallbacks) {
            let mut nodes = labels.members(selector, looked_at);
            looked_at.words += 2 * taken.words();
            nodes.subtract(&taken);
            let before = taken.len();
            taken.unite(&nodes);
            assert!(taken.len() == before + nodes.len(), "a node matches two fallbacks");
            parts.push(part(alternative, nodes));
        }
        parts
    }

    /// Returns the nodes that a taint excludes, and those that a taint makes less preferred.
    fn by_taints(traits: &Traits, rules: Option<&RankRules>, looked_at: &mut LookedAt) -> (Bits, Bits) {
        let tolerations = rules.map_or(&[][..], RankRules::tolerations);
        let mut tainted = Bits::default();
        let mut less_wanted = Bits::default();
        for (taints, nodes) in &traits.by_taints {
            looked_at.nodes += 1;
            match shunned(taints, tolerations) {
                None => nodes.apply(&mut tainted, true, looked_at),
                Some(true) => nodes.apply(&mut less_wanted, true, looked_at),
                Some(false) => {}
            }
        }
        let sum = tainted.len() + less_wanted.len();
        assert!(sum <= traits.tainted, "taints concern {sum} nodes, and {} have some", traits.tainted);
        (tainted, less_wanted)
    }
}
