//! The fragmentation of a node, in integers.
//!
//! The paper (Weng et al., "Beware of Fragmentation", USENIX ATC 2023) defines F over the typical shapes p
//! with their shares. F(node) = Σ share(p) · wasted(p). If p cannot run on the node or needs no GPU,
//! wasted(p) is all idle GPU. Otherwise it is the idle GPU on devices with less free than p's part.
//!
//! The complement is the usable capacity: U = Σ count(p) · (idle GPU on devices that p could take, if p can
//! run there). Then F = (Σ counts · idle − U) / Σ counts. A placement takes the same idle GPU on every node,
//! so nodes differ only in the change of U.
//!
//! U is cheap to compute. It is a sum over devices of a value that depends on the device's free part. For
//! shapes of several devices, a value is added that depends on the number of wholly free devices. Both values
//! come from tables by the node's *cpu class* and *model class*. The cpu class says which typical cpu amounts
//! the node has room for. The model class says which named model the node has.
//!
//! Bounds: at most 128 shapes with counts up to 2^32 each and 16 devices of 10,000, so |U| < 2^57.

use std::sync::Arc;

use super::Weighing;
use super::typical::{TypicalShape, TypicalShapes};
use crate::limits::GPU_INSTANCES_MAX;
use crate::resource::{GPU_UNIT, GpuAssignment, GpuBooks, GpuRequest};

/// The steps of the paper's simulator.
///
/// The simulator scores a placement by 100 / (1 + e^-x), rounded down, where x is the fall of F in devices.
/// Ties go to the first node. The score is at least k from x = ln(k / (100 − k)) on. The table lists these x
/// for k = 50, 51, … 99 in 10^-15 of a device, rounded up. Scores below 50 follow by symmetry.
///
/// Without the steps, differences of thousandths decide between nodes. The same trace then packs a whole
/// percent worse (ARCHITECTURE.md).
const STEPS: [i64; 50] = [
    0,
    40_005_334_613_700,
    80_042_707_673_537,
    120_144_311_842_064,
    160_342_650_075_180,
    200_670_695_462_152,
    241_162_056_816_889,
    281_851_152_140_988,
    322_773_392_263_052,
    363_965_377_201_412,
    405_465_108_108_165,
    447_312_218_043_665,
    489_548_225_318_706,
    532_216_813_747_309,
    575_364_144_903_562,
    619_039_208_406_224,
    663_294_217_410_265,
    708_185_057_924_486,
    753_771_802_376_381,
    800_119_300_112_114,
    847_297_860_387_204,
    895_384_047_054_842,
    944_461_608_840_852,
    994_622_575_144_063,
    1_045_968_555_182_688,
    1_098_612_288_668_110,
    1_152_679_509_938_386,
    1_208_311_205_924_535,
    1_265_666_373_331_276,
    1_324_925_414_743_599,
    1_386_294_361_119_891,
    1_450_010_175_505_999,
    1_516_347_489_368_089,
    1_585_627_263_740_382,
    1_658_228_076_603_533,
    1_734_601_055_388_107,
    1_815_289_966_638_250,
    1_900_958_761_193_047,
    1_992_430_164_690_207,
    2_090_741_096_933_770,
    2_197_224_577_336_220,
    2_313_634_929_180_631,
    2_442_347_035_369_205,
    2_586_689_344_097_943,
    2_751_535_313_041_949,
    2_944_438_979_166_441,
    3_178_053_830_347_946,
    3_476_098_689_835_274,
    3_891_820_298_110_627,
    4_595_119_850_134_590,
];

/// The GPUs of a node as the measure sees them. The order of the devices does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GpuState {
    /// Descending.
    free: [u16; GPU_INSTANCES_MAX],
    /// The number of devices with anything free.
    open: u8,
    /// The number of wholly free devices.
    whole: u8,
    model: u8,
}

impl GpuState {
    pub(super) fn new(books: &GpuBooks, model: u8) -> Self {
        let mut free = [0; GPU_INSTANCES_MAX];
        for (instance, part) in (0..).zip(&mut free) {
            *part = books.free(instance);
        }
        free.sort_unstable_by(|a, b| b.cmp(a));
        let open = free.iter().filter(|&&part| part > 0).count() as u8;
        Self { free, open, whole: books.whole_free() as u8, model }
    }

    pub(super) fn whole(&self) -> u8 {
        self.whole
    }

    pub(super) fn largest(&self) -> u16 {
        self.free[0]
    }
}

/// The tables for one set of typical shapes.
pub(super) struct Measure {
    /// The sum of all counts.
    total: i64,
    /// The cpu amounts of typical shapes that need a GPU, ascending.
    cpus: Box<[i64]>,
    /// Per range of cpu: the cpu class at its start, and the amount at which the next class begins. A range has
    /// `1 << range_shift` units.
    ranges: Box<[(u8, i64)]>,
    range_shift: u32,
    /// The models that typical shapes name, sorted. Class 0 is every other model.
    models: Box<[Arc<str>]>,
    /// The number of typical parts that a device has room for, by its free part.
    room: Box<[u8]>,
    /// One more than the number of typical parts.
    rooms: usize,
    /// The counts of the single-device shapes that fit, by model class, cpu class and room.
    single: Box<[i64]>,
    /// The counts of the multi-device shapes that fit, by model class, cpu class and number of wholly free
    /// devices.
    several: Box<[i64]>,
    /// The GPU units that one unit of cpu serves at the typical shapes' ratio, times 2^32. `None` if the
    /// shapes need no cpu.
    served_per_cpu: Option<u64>,
    /// The smallest fall of F for each score from 1 to 99, times `total`, in 1/10,000 of a device.
    steps: [i64; 99],
}

impl Measure {
    /// Returns the bytes that the tables take.
    pub(super) fn memory(&self) -> u64 {
        let counts = size_of_val(&*self.cpus) + size_of_val(&*self.single) + size_of_val(&*self.several);
        let tables = size_of_val(&*self.ranges) + size_of_val(&*self.room);
        (counts + tables + size_of_val(&*self.models)) as u64
    }
}

const FEMTO: i128 = 1_000_000_000_000_000;
const SERVED_SHIFT: u32 = 32;
const WHOLE_COUNTS: usize = GPU_INSTANCES_MAX + 1;
/// The number of ranges of cpu is at most two to this power.
const RANGE_BITS: u32 = 8;

impl Measure {
    pub(super) fn new(typical: &TypicalShapes) -> Self {
        let shapes = typical.shapes();
        let total: i64 = shapes.iter().map(|t| i64::from(t.count)).sum();
        let on_gpus = || shapes.iter().filter(|t| t.shape.gpu != GpuRequest::None);
        let ascending = |mut values: Vec<i64>| {
            values.sort_unstable();
            values.dedup();
            values
        };
        let cpus = ascending(on_gpus().map(|t| t.shape.cpu.units()).collect());
        let parts = ascending(on_gpus().filter_map(|t| part_of_one(t.shape.gpu)).map(i64::from).collect());
        let mut models: Vec<Arc<str>> =
            on_gpus().filter_map(|t| t.shape.models.as_deref()).flatten().cloned().collect();
        models.sort_unstable();
        models.dedup();
        let mut room = Vec::with_capacity(usize::from(GPU_UNIT) + 1);
        for (known, &part) in (0..).zip(&parts) {
            room.resize(part as usize, known);
        }
        room.resize(usize::from(GPU_UNIT) + 1, parts.len() as u8);
        let (ranges, range_shift) = ranges(&cpus);
        let classes = cpus.len() + 1;
        let rooms = parts.len() + 1;
        let mut single = vec![0; (models.len() + 1) * classes * rooms];
        let mut several = vec![0; (models.len() + 1) * classes * WHOLE_COUNTS];
        for typical in on_gpus() {
            let shape = &typical.shape;
            let count = i64::from(typical.count);
            let least_cpu = cpus.partition_point(|&cpu| cpu < shape.cpu.units()) + 1;
            let runs_on = |model: usize| {
                let named = shape.models.as_deref();
                named.is_none_or(|named| model > 0 && named.contains(&models[model - 1]))
            };
            for model in (0..=models.len()).filter(|&model| runs_on(model)) {
                for row in (model * classes + least_cpu)..(model + 1) * classes {
                    match (shape.gpu, part_of_one(shape.gpu)) {
                        (_, Some(part)) => {
                            let least = parts.partition_point(|&p| p < i64::from(part)) + 1;
                            single[row * rooms + least..(row + 1) * rooms]
                                .iter_mut()
                                .for_each(|sum| *sum += count);
                        }
                        (GpuRequest::Whole(devices), None) => {
                            let row = &mut several[row * WHOLE_COUNTS..(row + 1) * WHOLE_COUNTS];
                            row[usize::from(devices)..].iter_mut().for_each(|sum| *sum += count);
                        }
                        _ => {}
                    }
                }
            }
        }
        let steps = std::array::from_fn(|at| step(at + 1, total));
        Self {
            total,
            served_per_cpu: served_per_cpu(typical),
            room: room.into(),
            rooms,
            cpus: cpus.into(),
            ranges,
            range_shift,
            models: models.into(),
            single: single.into(),
            several: several.into(),
            steps,
        }
    }

    /// Returns whether the class of a node depends on its model.
    pub(super) fn names_models(&self) -> bool {
        !self.models.is_empty()
    }

    pub(super) fn model_class(&self, model: Option<&str>) -> u8 {
        let at = model.and_then(|model| self.models.binary_search_by(|known| known.as_ref().cmp(model)).ok());
        at.map_or(0, |at| at as u8 + 1)
    }

    /// Returns the number of typical cpu amounts that fit into `available`, an amount in units.
    #[inline]
    pub(super) fn cpu_class(&self, available: i64) -> u8 {
        // Every node is asked this for every list. A range has few amounts, so this is faster than a search.
        let range = (available.max(0) >> self.range_shift) as usize;
        let Some(&(class, next)) = self.ranges.get(range) else { return self.cpus.len() as u8 };
        if available < next { class } else { self.class_from(class, available) }
    }

    /// The same if it is above `class`.
    #[inline(never)]
    fn class_from(&self, class: u8, available: i64) -> u8 {
        let rest = &self.cpus[usize::from(class)..];
        class + rest.iter().take_while(|&&cpu| cpu <= available).count() as u8
    }

    #[inline]
    fn row(&self, model: u8, cpu_class: u8) -> usize {
        usize::from(model) * (self.cpus.len() + 1) + usize::from(cpu_class)
    }

    /// Returns the contribution to U of a device with this free part.
    #[inline]
    fn of_device(&self, row: usize, free: u16) -> i64 {
        self.single[row * self.rooms + usize::from(self.room[usize::from(free)])] * i64::from(free)
    }

    /// Returns the contribution to U of this number of wholly free devices, for multi-device shapes.
    #[inline]
    fn of_whole(&self, row: usize, whole: u8) -> i64 {
        self.several[row * WHOLE_COUNTS + usize::from(whole)] * i64::from(whole) * i64::from(GPU_UNIT)
    }

    /// Returns U.
    pub(super) fn usable(&self, gpus: &GpuState, cpu_class: u8) -> i64 {
        let row = self.row(gpus.model, cpu_class);
        let devices = gpus.free[..usize::from(gpus.open)].iter();
        devices.map(|&free| self.of_device(row, free)).sum::<i64>() + self.of_whole(row, gpus.whole)
    }

    /// Returns the change of U when `part` is taken from a device with `free` of a node in this state.
    fn gain(&self, row: usize, whole: u8, free: u16, part: u16) -> i64 {
        let of_several =
            if free == GPU_UNIT { self.of_whole(row, whole - 1) - self.of_whole(row, whole) } else { 0 };
        self.of_device(row, free - part) - self.of_device(row, free) + of_several
    }

    /// Returns U after placing the GPUs of `request`, which must fit, where most remains usable. `cpu_class`
    /// is the class of the remaining cpu.
    pub(super) fn usable_after(&self, gpus: &GpuState, cpu_class: u8, request: GpuRequest) -> i64 {
        let row = self.row(gpus.model, cpu_class);
        let before = self.usable(gpus, cpu_class);
        match request {
            GpuRequest::None => before,
            GpuRequest::Whole(count) => {
                before - i64::from(count) * self.of_device(row, GPU_UNIT)
                    + self.of_whole(row, gpus.whole - count)
                    - self.of_whole(row, gpus.whole)
            }
            GpuRequest::Fraction(part) => {
                let mut best = i64::MIN;
                let mut last = None;
                for &free in gpus.free.iter().take_while(|&&free| free >= part) {
                    if last != Some(free) {
                        best = best.max(self.gain(row, gpus.whole, free, part));
                        last = Some(free);
                    }
                }
                before + best
            }
        }
    }

    /// Returns the fall of F, times the sum of counts, when U goes from `before` to `after` and `request` is
    /// placed. More is better.
    #[inline]
    pub(super) fn fall(&self, request: GpuRequest, before: i64, after: i64) -> i64 {
        self.most_fall(request) - (before - after)
    }

    /// Returns the fall when `request` is placed and U stays the same. No fall is larger, as U never grows.
    #[inline]
    pub(super) fn most_fall(&self, request: GpuRequest) -> i64 {
        request.units() * self.total
    }

    /// Returns the score of a fall: 0 to 99, more is better.
    #[inline]
    pub(super) fn score(&self, fall: i64) -> u8 {
        self.steps.partition_point(|&least| least <= fall) as u8
    }

    /// Returns the smallest fall for which a placement costs at most `cost`. A cost is a negated score.
    pub(super) fn least_fall(&self, cost: i64) -> i64 {
        let score = usize::try_from(cost.saturating_neg()).unwrap_or(0);
        score.checked_sub(1).map_or(i64::MIN, |at| self.steps.get(at).copied().unwrap_or(i64::MAX))
    }

    /// Returns the idle GPU that `cpu`, in units, is too small to serve, at the typical shapes' cores per device,
    /// in 1/10,000 of a device.
    #[inline]
    pub(super) fn stranded(&self, cpu: i64, idle: i64) -> i64 {
        let Some(served_per_cpu) = self.served_per_cpu else { return 0 };
        let served = (u128::from(cpu.unsigned_abs()) * u128::from(served_per_cpu)) >> SERVED_SHIFT;
        (idle - i64::try_from(served).unwrap_or(i64::MAX)).max(0)
    }

    /// Returns the cost of a placement without steps, if F stays the same.
    ///
    /// It is the growth of the stranded GPU, plus 1/400 of the remaining idle GPU. The last term prefers the
    /// fuller of two equal nodes. The cost of a placement is this minus the fall of F.
    #[inline]
    pub(super) fn cost_without_fall(&self, stranding: i64, left: i64) -> i64 {
        self.total * stranding + self.total * left / 400
    }

    /// Returns the instances that `request` takes on a node that it fits. Ties go to the lowest instance.
    /// `cpu_class` is the class of the remaining cpu.
    pub(super) fn instances(
        &self,
        books: &GpuBooks,
        gpus: &GpuState,
        before: i64,
        cpu_class: u8,
        request: GpuRequest,
        weighing: Weighing,
    ) -> Option<GpuAssignment> {
        let GpuRequest::Fraction(part) = request else { return books.choose(request) };
        let row = self.row(gpus.model, cpu_class);
        let without = self.usable(gpus, cpu_class);
        let mut best: Option<(i64, u8)> = None;
        for instance in 0..GPU_INSTANCES_MAX as u8 {
            let free = books.free(instance);
            if free < part {
                continue;
            }
            let after = without + self.gain(row, gpus.whole, free, part);
            let fall = self.fall(request, before, after);
            let worth = match weighing {
                Weighing::Steps => i64::from(self.score(fall)),
                Weighing::Stranding => fall,
            };
            if best.is_none_or(|(highest, _)| worth > highest) {
                best = Some((worth, instance));
            }
        }
        best.map(|(_, instance)| GpuAssignment { mask: 1 << instance, part })
    }
}

/// Returns the ranges of cpu, and the shift from an amount to its range.
fn ranges(cpus: &[i64]) -> (Box<[(u8, i64)]>, u32) {
    let largest = cpus.last().copied().unwrap_or(0);
    let shift = (i64::BITS - largest.leading_zeros()).saturating_sub(RANGE_BITS);
    let range = |range: i64| {
        let class = cpus.partition_point(|&cpu| cpu <= range << shift);
        (class as u8, cpus.get(class).copied().unwrap_or(i64::MAX))
    };
    ((0..=largest >> shift).map(range).collect(), shift)
}

/// Computed from the sums over the typical shapes that need a GPU.
fn served_per_cpu(typical: &TypicalShapes) -> Option<u64> {
    let mut cpu = 0u128;
    let mut gpu = 0u128;
    for TypicalShape { shape, count } in typical.shapes() {
        let devices = shape.gpu.units();
        if devices > 0 {
            cpu += u128::from(*count) * u128::from(shape.cpu.units().unsigned_abs());
            gpu += u128::from(*count) * u128::from(devices.unsigned_abs());
        }
    }
    // A saturated value means that a unit of cpu serves more than any node has.
    Some(u64::try_from((gpu << SERVED_SHIFT).checked_div(cpu)?).unwrap_or(u64::MAX))
}

/// Returns the part of a device that a single-device shape takes.
fn part_of_one(gpu: GpuRequest) -> Option<u16> {
    match gpu {
        GpuRequest::Fraction(part) => Some(part),
        GpuRequest::Whole(1) => Some(GPU_UNIT),
        _ => None,
    }
}

/// Returns the smallest fall, times `total`, with this score. The result is exact, rounded up.
fn step(score: usize, total: i64) -> i64 {
    // For a score below 50, ln(k / (100 - k)) is the negated value for 100 - k, which was rounded up.
    let femto = if score >= 50 { STEPS[score - 50] } else { 1 - STEPS[50 - score] };
    let scaled = i128::from(femto) * i128::from(total) * i128::from(GPU_UNIT);
    let units = scaled.div_euclid(FEMTO) + i128::from(scaled.rem_euclid(FEMTO) > 0);
    i64::try_from(units).expect("5 devices times the counts of 128 shapes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragmentation::RequestShape;
    use crate::resource::Amount;

    fn measure(shapes: &[(u32, GpuRequest, u32)]) -> Measure {
        let counted = shapes
            .iter()
            .map(|&(cpu, gpu, count)| (RequestShape { cpu: Amount::whole(cpu), gpu, models: None }, count));
        Measure::new(&TypicalShapes::covering(counted.collect()))
    }

    fn books(free: &[u16]) -> GpuBooks {
        let mut books = GpuBooks::default();
        (0..).zip(free).for_each(|(instance, &part)| books.set_free(instance, part));
        books
    }

    /// Computed by hand, as in section 3 of the paper: the capacity of the node that each typical request
    /// could use.
    #[test]
    fn usable_is_what_each_typical_request_could_use() {
        let measure = measure(&[
            (4, GpuRequest::Fraction(5000), 5),
            (8, GpuRequest::Whole(1), 3),
            (8, GpuRequest::Whole(2), 2),
            (1, GpuRequest::None, 4),
        ]);
        let gpus = GpuState::new(&books(&[10_000, 6_000, 4_000, 10_000]), 0);
        let usable = |cpu| measure.usable(&gpus, measure.cpu_class(Amount::whole(cpu).units()));
        assert_eq!(usable(3), 0, "no request for a GPU can run");
        assert_eq!(usable(4), 5 * 26_000, "halves run on three of the devices");
        assert_eq!(usable(8), 5 * 26_000 + 3 * 20_000 + 2 * 20_000);
        // The device with 6000 left loses the least.
        let class = measure.cpu_class(Amount::whole(8).units());
        assert_eq!(measure.usable_after(&gpus, class, GpuRequest::Fraction(6000)), 5 * 20_000 + 5 * 20_000);
        // After one whole device is taken, the two-device request no longer runs.
        assert_eq!(measure.usable_after(&gpus, class, GpuRequest::Whole(1)), 5 * 16_000 + 3 * 10_000);
        assert_eq!(measure.fall(GpuRequest::Whole(1), usable(8), 110_000), 10_000 * 14 - 120_000);
    }

    #[test]
    fn a_part_goes_where_most_stays_usable() {
        let measure = measure(&[(1, GpuRequest::Fraction(5000), 9), (1, GpuRequest::Fraction(2000), 1)]);
        let books = books(&[7_000, 10_000, 3_000]);
        let gpus = GpuState::new(&books, 0);
        let class = measure.cpu_class(Amount::whole(2).units());
        let before = measure.usable(&gpus, class);
        let chosen = |part| {
            let request = GpuRequest::Fraction(part);
            measure
                .instances(&books, &gpus, before, class, request, Weighing::Stranding)
                .map(|gpus| gpus.mask)
        };
        assert_eq!(chosen(2000), Some(0b100), "3000 serves no half anyway");
        assert_eq!(chosen(5000), Some(0b010), "best fit would leave 2000 of the first, which serve none");
        assert_eq!(chosen(10_001), None);
    }

    #[test]
    fn scores_are_the_simulators() {
        let measure = measure(&[(1, GpuRequest::Whole(1), 1)]);
        let device = i64::from(GPU_UNIT);
        // 100 / (1 + e^-x) for x of -9, -1, -0.0001, 0, 0.0001, 1, 5 and 9 devices.
        let falls = [-9 * device, -device, -1, 0, 1, device, 5 * device, 9 * device];
        assert_eq!(falls.map(|fall| measure.score(fall)), [0, 26, 49, 50, 50, 73, 99, 99]);
        for score in 0..=99 {
            let least = measure.least_fall(-score);
            assert!(
                i64::from(measure.score(least)) == score
                    && (score == 0 || i64::from(measure.score(least - 1)) < score)
            );
        }
    }

    #[test]
    fn idle_gpus_beyond_the_cpu_are_stranded() {
        let measure = measure(&[(12, GpuRequest::Whole(1), 1), (4, GpuRequest::Whole(2), 2)]);
        // 20 cores for 5 devices: four cores serve one device.
        assert_eq!(measure.stranded(Amount::whole(8).units(), 80_000), 60_000);
        assert_eq!(measure.stranded(Amount::whole(8).units(), 10_000), 0);
        let no_cpu = self::measure(&[(0, GpuRequest::Whole(1), 1)]);
        assert_eq!(no_cpu.stranded(0, 10_000), 0);
    }
}
