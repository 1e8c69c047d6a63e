//! A node of the oracle: its capacity and what is in use on it. Nothing else is stored. Availability is the
//! difference, or zero where more is in use than the capacity.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::ResourceId;
use wharf_core::index::ResourceVector;
use wharf_core::limits::ALLOCATIONS_PER_NODE_DEFAULT;
use wharf_core::node::{LifeEvent, NodeRegistration, NodeSpec, NodeState, Operator, Selector};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::{
    Amount, Demand, GpuAssignment, GpuBooks, GpuRequest, UnitAssignment, UnitAssignments,
};

use super::fragmentation::{FragmentationScan, NodeState as PricedState, Price};
use super::linear_reservations::LinearReservation;

/// The number of GPU instances of the largest node.
pub(super) const INSTANCES: usize = 16;
/// The amount of one whole device.
pub(super) const DEVICE: i64 = 10_000;

#[derive(Clone, Debug)]
pub(super) struct LinearNode {
    pub(super) registration: NodeRegistration,
    /// Set when the operator wants no new work on the node.
    pub(super) drained: bool,
    /// The state of the node's agent. A node without an agent counts as `Here`.
    pub(super) presence: Presence,
    /// The reason for each unhealthy instance.
    pub(super) unhealthy: BTreeMap<u8, Arc<str>>,
    pub(super) allocations: u32,
    /// The highest permitted number of allocations.
    pub(super) allocations_max: u32,
    /// Counts the node's changes, as node lists show them.
    pub(super) version: u64,
    /// The reservation of the node, if it has one.
    pub(super) reservation: Option<LinearReservation>,
    pub(super) cpu_used: i64,
    pub(super) memory_used: i64,
    pub(super) gpu_used: [i64; INSTANCES],
    pub(super) custom_used: BTreeMap<ResourceId, i64>,
    /// The amount in use per unit of a unit-instance resource.
    pub(super) unit_used: BTreeMap<(ResourceId, u32), i64>,
}

/// The state of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Joining,
    Here,
    Lost,
}

/// A resource that a node has too little of, and the missing amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The node has as many allocations as permitted. Other shortages are not reported.
    Allocations,
    Cpu(i64),
    Memory(i64),
    WholeGpus(i64),
    GpuPart(i64),
    Custom(ResourceId, i64),
    /// There is enough in total, but only in pieces.
    Pieces(ResourceId, i64),
}

/// The highest number of units that a node can have.
pub(super) const UNITS: u32 = 64;

pub(super) fn custom_total(spec: &NodeSpec, id: ResourceId) -> i64 {
    let mut total = 0;
    for &(kind, amount) in spec.custom.iter().flat_map(|custom| custom.iter()) {
        if kind == id {
            total += amount.units();
        }
    }
    total
}

impl LinearNode {
    pub(super) fn new(registration: NodeRegistration) -> Self {
        let has_agent = registration.agent.is_some();
        Self {
            registration,
            drained: false,
            presence: if has_agent { Presence::Joining } else { Presence::Here },
            unhealthy: BTreeMap::new(),
            allocations: 0,
            allocations_max: u32::from(ALLOCATIONS_PER_NODE_DEFAULT),
            version: 0,
            reservation: None,
            cpu_used: 0,
            memory_used: 0,
            gpu_used: [0; INSTANCES],
            custom_used: BTreeMap::new(),
            unit_used: BTreeMap::new(),
        }
    }

    pub(super) fn cpu_free(&self) -> i64 {
        (self.registration.spec.cpu.units() - self.cpu_used).max(0)
    }

    pub(super) fn memory_free(&self) -> i64 {
        (self.registration.spec.memory.units() - self.memory_used).max(0)
    }

    pub(super) fn gpu_total(&self, instance: usize) -> i64 {
        if instance < usize::from(self.registration.spec.gpus) { DEVICE } else { 0 }
    }

    pub(super) fn gpu_free(&self, instance: usize) -> i64 {
        if self.unhealthy.contains_key(&(instance as u8)) { 0 } else { self.gpu_left(instance) }
    }

    fn gpu_left(&self, instance: usize) -> i64 {
        (self.gpu_total(instance) - self.gpu_used[instance]).max(0)
    }

    /// Returns the unused amount of unhealthy instances.
    pub(super) fn gpu_hidden(&self) -> i64 {
        self.unhealthy.keys().map(|&instance| self.gpu_left(usize::from(instance))).sum()
    }

    pub(super) fn state(&self) -> NodeState {
        match (self.presence, self.drained) {
            (Presence::Joining, _) => NodeState::Joining,
            (Presence::Lost, draining) => NodeState::Lost { draining },
            (Presence::Here, true) => NodeState::Draining,
            (Presence::Here, false) => NodeState::Ready,
        }
    }

    /// Applies an event. Returns false if the event is not legal in the current state.
    pub(super) fn live(&mut self, event: LifeEvent) -> bool {
        let before = self.state();
        match event {
            LifeEvent::Beat => self.presence = Presence::Here,
            LifeEvent::Report if self.presence == Presence::Lost => self.presence = Presence::Here,
            LifeEvent::Report => {}
            LifeEvent::Lose => self.presence = Presence::Lost,
            LifeEvent::Drain => {
                self.drained = true;
                if self.presence == Presence::Joining {
                    self.presence = Presence::Here;
                }
            }
            LifeEvent::Undrain if self.drained || self.presence == Presence::Here => self.drained = false,
            LifeEvent::Undrain => return false,
        }
        self.version += u64::from(self.state() != before);
        true
    }

    /// Sets new capacity and labels.
    pub(super) fn update(&mut self, spec: NodeSpec) {
        self.unhealthy.retain(|&instance, _| instance < spec.gpus);
        self.registration.spec = spec;
        self.version += 1;
    }

    /// Returns why an instance is unhealthy, or `None` if it is healthy.
    pub(super) fn unhealthy_reason(&self, instance: u8) -> Option<Arc<str>> {
        self.unhealthy.get(&instance).cloned()
    }

    /// Replaces the set of unhealthy instances. Returns whether any instance became healthy.
    pub(super) fn set_health(&mut self, unhealthy: &[(u8, Arc<str>)]) -> bool {
        let gpus = self.registration.spec.gpus;
        let now: BTreeMap<u8, Arc<str>> =
            unhealthy.iter().filter(|(instance, _)| *instance < gpus).cloned().collect();
        let healed = self.unhealthy.keys().any(|instance| !now.contains_key(instance));
        self.version += u64::from(now != self.unhealthy);
        self.unhealthy = now;
        healed
    }

    pub(super) fn custom_free(&self, id: ResourceId) -> i64 {
        let used = self.custom_used.get(&id).copied().unwrap_or(0);
        (custom_total(&self.registration.spec, id) - used).max(0)
    }

    fn whole_free(&self) -> i64 {
        (0..INSTANCES).map(|instance| i64::from(self.gpu_free(instance) == DEVICE)).sum()
    }

    fn largest_free(&self) -> i64 {
        let mut largest = 0;
        for instance in 0..INSTANCES {
            largest = largest.max(self.gpu_free(instance));
        }
        largest
    }

    /// Returns the availability that the index is told, where `indexed` names the indexed custom resources.
    pub(super) fn available(&self, indexed: &[ResourceId]) -> ResourceVector {
        let amount = |units| Amount::try_from_units(units).expect("no more than the capacity");
        let mut vector = ResourceVector {
            cpu: amount(self.cpu_free()),
            memory: amount(self.memory_free()),
            whole_gpus: self.whole_free() as u16,
            largest_gpu_part: self.largest_free() as u16,
            ..ResourceVector::default()
        };
        for (number, &id) in indexed.iter().enumerate() {
            vector.custom[number] = amount(if id.is_unit_instance() {
                let parts = (0..UNITS).map(|unit| self.unit_free(id, unit));
                let whole = parts.clone().filter(|&part| part == DEVICE).count() as i64;
                if whole > 0 { whole * DEVICE } else { parts.max().unwrap_or(0) }
            } else {
                self.custom_free(id)
            });
        }
        vector
    }

    /// Returns the availability that the index would be told if the node were empty and healthy.
    pub(super) fn size(&self, indexed: &[ResourceId]) -> ResourceVector {
        let mut vector = Self::new(self.registration.clone()).available(indexed);
        for (number, &id) in indexed.iter().enumerate() {
            let total = custom_total(&self.registration.spec, id);
            vector.custom[number] = Amount::try_from_units(total).expect("as it was given");
        }
        vector
    }

    /// Returns every shortage of the node for `demand`.
    pub(super) fn lacks(&self, demand: &Demand) -> Vec<Lack> {
        if self.allocations >= self.allocations_max {
            return vec![Lack::Allocations];
        }
        let mut lacks = Vec::new();
        let mut compare = |asked: i64, free: i64, lack: fn(i64) -> Lack| {
            if asked > free {
                lacks.push(lack(asked - free));
            }
        };
        compare(demand.cpu.units(), self.cpu_free(), Lack::Cpu);
        compare(demand.memory.units(), self.memory_free(), Lack::Memory);
        match demand.gpu {
            GpuRequest::None => {}
            GpuRequest::Fraction(part) => compare(i64::from(part), self.largest_free(), Lack::GpuPart),
            GpuRequest::Whole(count) => {
                compare(i64::from(count) * DEVICE, self.whole_free() * DEVICE, Lack::WholeGpus);
            }
        }
        for &(id, amount) in demand.custom() {
            if id.is_unit_instance() {
                lacks.extend(self.lacks_units(id, amount.units()));
                continue;
            }
            let free = self.custom_free(id);
            if amount.units() > free {
                lacks.push(Lack::Custom(id, amount.units() - free));
            }
        }
        lacks
    }

    /// Returns whether the node could hold `demand` if it were empty.
    pub(super) fn could_hold(&self, demand: &Demand) -> bool {
        let empty = Self::new(self.registration.clone());
        empty.lacks(demand).is_empty()
    }

    /// Returns the instances that `request` takes. A part takes the instance with the smallest free part that
    /// suffices, whole devices take fully free instances. Among equal instances the lowest index wins.
    pub(super) fn instances_for(&self, request: GpuRequest) -> GpuAssignment {
        let mut mask = 0u16;
        match request {
            GpuRequest::None => GpuAssignment { mask: 0, part: 0 },
            GpuRequest::Fraction(part) => {
                let mut best: Option<usize> = None;
                for instance in 0..INSTANCES {
                    let free = self.gpu_free(instance);
                    if free >= i64::from(part) && best.is_none_or(|best| free < self.gpu_free(best)) {
                        best = Some(instance);
                    }
                }
                mask |= 1 << best.expect("the node was found to fit");
                GpuAssignment { mask, part }
            }
            GpuRequest::Whole(count) => {
                let mut left = count;
                for instance in 0..INSTANCES {
                    if left > 0 && self.gpu_free(instance) == DEVICE {
                        mask |= 1 << instance;
                        left -= 1;
                    }
                }
                assert!(left == 0, "the node was found to fit");
                GpuAssignment { mask, part: DEVICE as u16 }
            }
        }
    }

    /// Returns the price of a fitting request on this node under a fragmentation-aware policy.
    pub(super) fn price(&self, scan: &mut FragmentationScan, request: &PlacementRequest) -> Price {
        let mut gpus = GpuBooks::default();
        for instance in 0..INSTANCES {
            gpus.set_free(instance as u8, self.gpu_free(instance) as u16);
        }
        let labels = &self.registration.spec.labels;
        let model = labels.iter().find(|(key, _)| *key == "gpu-model").map(|(_, value)| value.into());
        scan.price(request, &PricedState { cpu: self.cpu_free(), gpus: &gpus, model: model.as_ref() })
    }

    fn unit_total(&self, id: ResourceId, unit: u32) -> i64 {
        if i64::from(unit) * DEVICE < custom_total(&self.registration.spec, id) { DEVICE } else { 0 }
    }

    pub(super) fn unit_free(&self, id: ResourceId, unit: u32) -> i64 {
        let used = self.unit_used.get(&(id, unit)).copied().unwrap_or(0);
        (self.unit_total(id, unit) - used).max(0)
    }

    fn lacks_units(&self, id: ResourceId, asked: i64) -> Option<Lack> {
        let free: Vec<i64> = (0..UNITS).map(|unit| self.unit_free(id, unit)).collect();
        let room = if asked < DEVICE {
            free.iter().copied().max().unwrap_or(0)
        } else {
            DEVICE * free.iter().filter(|&&part| part == DEVICE).count() as i64
        };
        let in_sum: i64 = free.iter().sum();
        if room >= asked {
            None
        } else if in_sum >= asked {
            Some(Lack::Pieces(id, asked - room))
        } else {
            Some(Lack::Custom(id, asked - room))
        }
    }

    /// Returns the units that `asked` of a unit-instance resource takes, or `None` if they are not free.
    fn units_for(&self, id: ResourceId, asked: i64) -> Option<UnitAssignment> {
        if asked < DEVICE {
            let fitting = (0..UNITS).filter(|&unit| self.unit_free(id, unit) >= asked);
            let unit = fitting.min_by_key(|&unit| self.unit_free(id, unit))?;
            return Some(UnitAssignment { mask: 1 << unit, part: asked as u16 });
        }
        let whole: Vec<u32> = (0..UNITS).filter(|&unit| self.unit_free(id, unit) == DEVICE).collect();
        let taken = whole.get(..(asked / DEVICE) as usize)?;
        Some(UnitAssignment { mask: taken.iter().map(|unit| 1u64 << unit).sum(), part: DEVICE as u16 })
    }

    /// Returns the units that `demand` takes, as a placement names them.
    pub(super) fn all_units_for(&self, demand: &Demand) -> Option<Arc<UnitAssignments>> {
        let kinds = demand.custom().iter().filter(|(id, _)| id.is_unit_instance());
        let units: UnitAssignments = kinds
            .map(|&(id, amount)| (id, self.units_for(id, amount.units()).expect("the node was found to fit")))
            .collect();
        if units.is_empty() { None } else { Some(Arc::new(units)) }
    }

    /// Returns whether an adoption without named instances may hold these. Where the demand fits, they must be
    /// the ones that a placement would take. Otherwise they must overcommit as little as possible.
    pub(super) fn may_adopt(
        &self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) -> bool {
        let of_gpus = |lack: &Lack| matches!(lack, Lack::WholeGpus(_) | Lack::GpuPart(_));
        let (count, part) = match demand.gpu {
            GpuRequest::None => (0, 0),
            GpuRequest::Fraction(part) => (1, i64::from(part)),
            GpuRequest::Whole(count) => (u32::from(count), DEVICE),
        };
        let gpus_right = if self.lacks(demand).iter().any(of_gpus) {
            let free = |i: u32| if i < INSTANCES as u32 { self.gpu_free(i as usize) } else { 0 };
            gpus.mask.count_ones() == count
                && i64::from(gpus.part) == part
                && overcommits(u64::from(gpus.mask), part, free) == least(count, part, free)
        } else {
            gpus == self.instances_for(demand.gpu)
        };
        let mut given = units.map_or(&[][..], |units| units.as_slice()).iter();
        gpus_right
            && demand.custom().iter().filter(|(id, _)| id.is_unit_instance()).all(|&(id, amount)| {
                let Some(&(kind, units)) = given.next() else { return false };
                let free = |unit: u32| self.unit_free(id, unit);
                let (count, part) = if amount.units() < DEVICE {
                    (1, amount.units())
                } else {
                    ((amount.units() / DEVICE) as u32, DEVICE)
                };
                let right = match self.units_for(id, amount.units()) {
                    Some(expected) => units == expected,
                    None => overcommits(units.mask, part, free) == least(count, part, free),
                };
                kind == id && units.mask.count_ones() == count && i64::from(units.part) == part && right
            })
            && given.next().is_none()
    }

    /// Records that an allocation begins (`sign` 1) or ends (`sign` -1).
    pub(super) fn change_use(
        &mut self,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
        sign: i64,
    ) {
        for &(id, assignment) in units.map_or(&[][..], |units| units.as_slice()) {
            for unit in (0..UNITS).filter(|unit| assignment.mask >> unit & 1 == 1) {
                *self.unit_used.entry((id, unit)).or_insert(0) += sign * i64::from(assignment.part);
            }
        }
        self.cpu_used += sign * demand.cpu.units();
        self.memory_used += sign * demand.memory.units();
        for instance in 0..INSTANCES {
            if gpus.mask & (1 << instance) != 0 {
                self.gpu_used[instance] += sign * i64::from(gpus.part);
            }
        }
        for &(id, amount) in demand.custom() {
            *self.custom_used.entry(id).or_insert(0) += sign * amount.units();
        }
        if sign > 0 {
            self.allocations += 1;
        } else {
            self.allocations -= 1;
        }
        self.version += 1;
    }

    /// Returns the amounts in use beyond the capacity: cpu, memory, GPU devices.
    pub(super) fn beyond(&self) -> [i64; 3] {
        let spec = &self.registration.spec;
        let gpu = (0..INSTANCES).map(|i| (self.gpu_used[i] - self.gpu_total(i)).max(0)).sum();
        [(self.cpu_used - spec.cpu.units()).max(0), (self.memory_used - spec.memory.units()).max(0), gpu]
    }

    /// Returns the amounts in use: cpu, memory, GPU devices.
    pub(super) fn used(&self) -> [i64; 3] {
        [self.cpu_used, self.memory_used, self.gpu_used.iter().sum()]
    }

    /// Returns the amount in use of every custom resource that was ever used.
    pub(super) fn custom_used(&self) -> impl Iterator<Item = (ResourceId, i64)> {
        self.custom_used.iter().map(|(&id, &used)| (id, used))
    }

    /// Returns the amount of a custom resource in use beyond its capacity.
    pub(super) fn custom_beyond(&self, id: ResourceId) -> i64 {
        if id.is_unit_instance() {
            let of_kind = self.unit_used.iter().filter(|((kind, _), _)| *kind == id);
            return of_kind.map(|(&(_, unit), &used)| (used - self.unit_total(id, unit)).max(0)).sum();
        }
        let used = self.custom_used.get(&id).copied().unwrap_or(0);
        (used - custom_total(&self.registration.spec, id)).max(0)
    }

    /// Returns whether the labels satisfy every term.
    pub(super) fn satisfies(&self, selector: &Selector) -> bool {
        selector.terms().iter().all(|term| {
            let value = self
                .registration
                .spec
                .labels
                .iter()
                .find(|(key, _)| *key == term.key)
                .map(|(_, value)| value.to_owned());
            let named = value.as_ref().is_some_and(|value| term.values.contains(value));
            match term.operator {
                Operator::In => named,
                Operator::NotIn => !named,
                Operator::Exists => value.is_some(),
                Operator::NotExists => value.is_none(),
                Operator::Greater | Operator::Less => {
                    let pair = value.and_then(|value| Some((integer(&value)?, integer(&term.values[0])?)));
                    pair.is_some_and(|(value, operand)| match term.operator {
                        Operator::Greater => value > operand,
                        _ => value < operand,
                    })
                }
            }
        })
    }
}

/// Parses a 64-bit integer digit by digit.
fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || digits.len() > 30 {
        return None;
    }
    let mut value: i128 = 0;
    for digit in digits.chars() {
        value = value * 10 + i128::from(digit.to_digit(10)?);
    }
    let value = sign * value;
    (i128::from(i64::MIN)..=i128::from(i64::MAX)).contains(&value).then_some(value)
}

/// Returns what taking `part` of each named instance adds to the shortfalls.
fn overcommits(mask: u64, part: i64, free: impl Fn(u32) -> i64) -> i64 {
    (0..UNITS).filter(|unit| mask >> unit & 1 == 1).map(|unit| (part - free(unit)).max(0)).sum()
}

/// Returns the least that `part` of each of `count` instances can overcommit.
fn least(count: u32, part: i64, free: impl Fn(u32) -> i64) -> i64 {
    let mut short: Vec<i64> = (0..UNITS).map(|unit| (part - free(unit)).max(0)).collect();
    short.sort_unstable();
    short.iter().take(count as usize).sum()
}
