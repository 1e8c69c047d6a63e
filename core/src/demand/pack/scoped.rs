//! Packs jobs with rules about domains of the topology: a gang in one domain, or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Log, Meter, Outcome, Packer, Templates};
use crate::demand::domains::{self, Domain, Domains};
use crate::demand::items::{Item, Layout, Unit};
use crate::demand::marks;
use crate::fairness::Amounts;
use crate::index::Slot;
use crate::jobs::nodes::Unfit;
use crate::jobs::{JobId, TaskState};
use crate::limits::PLAN_DOMAINS_MAX;

/// How well a domain serves: what is left, whether it could not hold all, the nodes that are added, and how wide it is. Less
/// is better.
type Order = (u64, bool, usize, usize);

/// Where the tasks of a job are, and those of its task groups.
#[derive(Default)]
pub(in crate::demand) struct Homes {
    of_job: Option<Domain>,
    of_groups: BTreeMap<u32, Domain>,
    /// Why what the job needs at once gets no nodes. The rest of it does not start then either.
    pub(in crate::demand) lacks_gang: Option<Unfit>,
}

/// What is to be placed.
#[derive(Clone, Copy)]
struct Ask<'u> {
    unit: &'u Unit,
    layout: &'u Layout,
    domains: &'u Domains,
    homes: &'u Homes,
    /// Whether it is a task group within the domain of its job.
    is_inner: bool,
}

/// What was placed in a domain.
struct Attempt {
    domain: Domain,
    left: Vec<u32>,
    log: Log,
    groups: Vec<(u32, Domain)>,
}

impl Packer<'_> {
    /// Returns all domains, as they are now. Marks the nodes that are in them.
    pub(in crate::demand) fn domains(&mut self) -> Domains {
        let finder = Arc::clone(self.cluster.scheduler().domains());
        let view = self.cluster.view();
        let mut marked = Vec::new();
        view.nodes(|_, hot, cold| {
            marked.extend(marks::marked(&finder, &cold.registration.spec).map(|spec| (hot.id, spec)));
        });
        let domains = Domains::new(finder, &view, self.request, &self.counts);
        // Released before the next one is published: kept views cost memory.
        drop(view);
        marked.into_iter().for_each(|(node, spec)| self.cluster.update_node(node, spec));
        self.cluster.publish();
        self.copy.sync();
        domains
    }

    /// Returns where the tasks of a job are.
    pub(in crate::demand) fn homes(&self, job: JobId, domains: &Domains, meter: &mut Meter) -> Homes {
        let of = self.cluster.scheduler().jobs().job(job);
        let groups = &of.spec().tasks;
        let keeps = |state: TaskState| state.holds() || state == TaskState::Pipelined;
        // A task that has no node takes much less than a look.
        meter.charge(1 + of.tasks().len() as u64 / 32);
        let mut homes = Homes::default();
        for task in of.tasks().iter().filter(|task| keeps(task.state)) {
            let Some(at) = task.node.and_then(|node| domains.of(node)) else { continue };
            meter.charge(1);
            match &mut homes.of_job {
                Some(home) => domains::cover(home, at),
                none => *none = Some(at.clone()),
            }
            if groups[task.group as usize].topology.is_some() {
                let home = homes.of_groups.entry(task.group);
                home.and_modify(|home| domains::cover(home, at)).or_insert_with(|| at.clone());
            }
        }
        homes
    }

    /// Notes in the domains what a unit has taken, and the nodes that were added for it.
    pub(in crate::demand) fn settle(&self, kept: Log, domains: &mut Domains, meter: &mut Meter) {
        meter.charge(kept.entries.len() as u64);
        for added in &self.added[kept.before..] {
            domains.add_node(added.node, added.of_type);
        }
        let mut by_slot: BTreeMap<Slot, usize> = BTreeMap::new();
        for slot in kept.entries {
            *by_slot.entry(slot).or_default() += 1;
        }
        for (slot, count) in by_slot {
            let placed = &self.placed[&slot];
            let mut taken = Amounts::zero();
            placed[placed.len() - count..].iter().for_each(|placed| taken.add(&placed.item.amounts));
            let node = self.copy.shard().node_at(slot).expect("something is placed there");
            domains.take(node, &taken);
        }
    }

    /// Places tasks of a job where its rules allow it: a gang as a whole or not at all, of others as much as fits.
    pub(in crate::demand) fn place_laid_out(
        &mut self,
        (unit, layout): (&Unit, &Layout),
        wanted: &[u32],
        (domains, homes): (&Domains, &mut Homes),
        templates: &mut Templates,
        meter: &mut Meter,
    ) -> Outcome {
        let ask = Ask { unit, layout, domains, homes, is_inner: false };
        let all: Vec<usize> = (0..unit.items.len()).collect();
        let allowed = domains.allowed(layout.rule.as_ref(), homes.of_job.as_ref(), &Domain::new());
        let cuts = meter.cuts;
        let found = self.choose(ask, &all, wanted, &allowed, Some(templates), meter);
        let left = found.as_ref().map_or_else(|| wanted.to_vec(), |found| found.left.clone());
        let mut outcome = Outcome { left, reason: Unfit::Topology, kept: None };
        if let Some(at) = outcome.first_left() {
            outcome.reason = self.why_in_domains(ask, &unit.items[at], &allowed, templates, meter);
            // What fits nowhere does not depend on the domains that were left out.
            if meter.cuts > cuts && !matches!(outcome.reason, Unfit::Never(_)) {
                outcome.reason = Unfit::Undecided;
            }
        }
        if let Some(Attempt { domain, groups, log, .. }) = found {
            outcome.kept = Some(log);
            homes.of_job.get_or_insert(domain);
            for (group, domain) in groups {
                homes.of_groups.entry(group).or_insert(domain);
            }
        }
        outcome
    }

    /// Places items in the best of some domains: first where present nodes suffice, in the narrowest tier. Then where the
    /// most fits with the fewest new nodes. `None`: nothing was placed.
    fn choose(
        &mut self,
        ask: Ask<'_>,
        items: &[usize],
        wanted: &[u32],
        allowed: &[Domain],
        mut templates: Option<&mut Templates>,
        meter: &mut Meter,
    ) -> Option<Attempt> {
        // To find these domains took a look at all, and each of them is asked for its room.
        meter.charge(1 + ask.domains.len() as u64 / 8 + allowed.len() as u64);
        let is_gang = ask.unit.gang.is_some();
        let mut asked = Amounts::zero();
        for &at in items {
            let each = &ask.unit.items[at].amounts;
            let times = i64::from(wanted[at]);
            asked.add(&each.iter().map(|(dim, amount)| (dim, amount.saturating_mul(times))).collect());
        }
        let counts = self.counts.clone();
        let suffices = |of: &&Domain| ask.domains.could_hold(of, &asked, &counts);
        let mut present: Vec<&Domain> = allowed.iter().filter(suffices).collect();
        // As in cycles, domains with room for all tasks of the job come first.
        present.sort_by_cached_key(|of| {
            (std::cmp::Reverse(of.len()), !ask.domains.could_hold(of, &ask.layout.all, &counts))
        });
        let is_cut = present.len() > PLAN_DOMAINS_MAX + 1;
        // The widest one is always tried. A soft rule allows the whole cluster.
        let widest = present.split_off(PLAN_DOMAINS_MAX.min(present.len())).pop();
        for domain in present.into_iter().chain(widest) {
            let attempt = self.attempt(ask, items, wanted, domain, None, meter);
            if items.iter().all(|&at| attempt.left[at] == 0) {
                return Some(attempt);
            }
            self.undo(attempt.log, meter);
            if meter.is_over() {
                return None;
            }
        }
        meter.cuts += u64::from(is_cut);
        meter.charge(allowed.len() as u64);
        let types = 0..self.request.types.len();
        let most: Vec<u32> = types.clone().map(|at| counts[at] + self.room(at)).collect();
        let launches = templates.is_some();
        let grows = |of: &Domain| {
            let mut types = types.clone().filter(|&at| launches && most[at] > counts[at]);
            types.any(|of_type| ask.domains.has_type(of, of_type))
        };
        let has_room = |of: &Domain| {
            items.iter().any(|&at| ask.domains.could_hold(of, &ask.unit.items[at].amounts, &counts))
        };
        // Types are few, so all domains that can get nodes are tried. The widest one is as well.
        let mut others = PLAN_DOMAINS_MAX * 8;
        let mut is_cut = false;
        let mut tried: Vec<&Domain> = Vec::new();
        for (number, domain) in (1..).zip(allowed) {
            if grows(domain) {
                if !is_gang || ask.domains.could_hold(domain, &asked, &most) {
                    tried.push(domain);
                }
            } else if !is_gang && has_room(domain) {
                if others > 0 || number == allowed.len() {
                    others = others.saturating_sub(1);
                    tried.push(domain);
                } else {
                    is_cut = true;
                }
            }
        }
        let mut best: Option<(Order, &Domain)> = None;
        for domain in tried {
            let before = self.added.len();
            let attempt = self.attempt(ask, items, wanted, domain, templates.as_deref_mut(), meter);
            let left: u64 = items.iter().map(|&at| u64::from(attempt.left[at])).sum();
            let added = self.added.len() - before;
            self.undo(attempt.log, meter);
            let lacks = !ask.domains.could_hold(domain, &ask.layout.all, &most);
            let order = (left, lacks, added, usize::MAX - domain.len());
            if (left == 0 || !is_gang) && best.as_ref().is_none_or(|(of_best, _)| order < *of_best) {
                best = Some((order, domain));
            }
            if meter.is_over() {
                return None;
            }
        }
        let ((left, ..), domain) = best?;
        // Those left out get no nodes. Where all fits without, it was tried above.
        meter.cuts += u64::from(is_cut && left > 0);
        let attempt = self.attempt(ask, items, wanted, domain, templates, meter);
        if is_gang && items.iter().any(|&at| attempt.left[at] > 0) {
            self.undo(attempt.log, meter);
            return None;
        }
        Some(attempt)
    }

    /// Places items in a domain, as much as fits. Task groups with rules of their own come first.
    fn attempt(
        &mut self,
        ask: Ask<'_>,
        items: &[usize],
        wanted: &[u32],
        domain: &Domain,
        mut templates: Option<&mut Templates>,
        meter: &mut Meter,
    ) -> Attempt {
        let mut left = wanted.to_vec();
        let mut log = Log { before: self.added.len(), entries: Vec::new() };
        let mut groups = Vec::new();
        let mut plain = items.to_vec();
        if !ask.is_inner {
            let with_rule = |at: &usize| ask.layout.groups[*at].1.is_some();
            let (ruled, others): (Vec<usize>, Vec<usize>) = items.iter().copied().partition(with_rule);
            plain = others;
            for at in ruled {
                let (group, rule) = &ask.layout.groups[at];
                let home = ask.homes.of_groups.get(group);
                let allowed = ask.domains.allowed(rule.as_ref(), home, domain);
                let inner = Ask { is_inner: true, ..ask };
                let inner = self.choose(inner, &[at], &left, &allowed, templates.as_deref_mut(), meter);
                if let Some(inner) = inner {
                    left[at] = inner.left[at];
                    log.entries.extend(inner.log.entries);
                    groups.push((*group, inner.domain));
                }
            }
        }
        let terms = ask.domains.terms(domain);
        let within = |at: &usize| Arc::new(ask.unit.items[*at].within(&terms));
        let scoped: Vec<Arc<Item>> = plain.iter().map(within).collect();
        let mut of_scoped: Vec<u32> = plain.iter().map(|&at| left[at]).collect();
        for (item, left) in scoped.iter().zip(&mut of_scoped) {
            while *left > 0 && !meter.is_over() {
                let Some(slot) = self.place_one(item, meter) else { break };
                log.entries.push(slot);
                *left -= 1;
            }
        }
        if let Some(templates) = templates {
            self.launch_for(&scoped, &mut of_scoped, &mut log, templates, meter);
        }
        plain.iter().zip(of_scoped).for_each(|(&at, of)| left[at] = of);
        Attempt { domain: domain.clone(), left, log, groups }
    }

    /// Returns why an item has no node in the domains that its job may have.
    fn why_in_domains(
        &mut self,
        ask: Ask<'_>,
        item: &Item,
        allowed: &[Domain],
        templates: &mut Templates,
        meter: &mut Meter,
    ) -> Unfit {
        let reason = self.why(item, templates, meter);
        if matches!(reason, Unfit::Never(_) | Unfit::OnlyPresent | Unfit::Undecided) {
            return reason;
        }
        let types = 0..self.request.types.len();
        let has_types = |of: &&Domain| types.clone().any(|of_type| ask.domains.has_type(of, of_type));
        for domain in allowed.iter().filter(has_types).take(PLAN_DOMAINS_MAX) {
            let within = item.within(&ask.domains.terms(domain));
            let reason = self.why(&within, templates, meter);
            if matches!(reason, Unfit::TypeLimit | Unfit::AllLimit | Unfit::Undecided) {
                return reason;
            }
        }
        Unfit::Topology
    }
}
