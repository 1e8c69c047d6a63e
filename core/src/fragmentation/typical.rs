//! Typical request shapes, against which a node's free capacity is measured.
//!
//! The paper takes the most frequent shapes that cover 95% of a trace. An operator can give them from past
//! requests. Otherwise they are learned from the requests that arrive.

use std::sync::Arc;

use crate::limits::{
    LEARN_INTERVAL_MAX, LEARNT_SHAPES_MAX, TYPICAL_COVER_PERCENT, TYPICAL_MODELS_MAX, TYPICAL_SHAPES_MAX,
};
use crate::map::FixedMap;
use crate::node::{GPU_MODEL_LABEL, Operator, Selector};
use crate::request::PlacementRequest;
use crate::resource::{Amount, GpuRequest};

/// The properties that many requests share. As in the paper, memory is not included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestShape {
    /// Cores.
    pub cpu: Amount,
    /// Whole devices, or a part of one.
    pub gpu: GpuRequest,
    /// The GPU models that it may run on, sorted. `None` means any.
    pub models: Option<Arc<[Arc<str>]>>,
}

impl RequestShape {
    /// Returns the shape of a request. Only the GPU models in its selector are used.
    #[must_use]
    pub fn of(request: &PlacementRequest) -> Self {
        let models = request.selector.as_deref().and_then(models_named);
        Self { cpu: request.demand.cpu, gpu: request.demand.gpu, models }
    }
}

fn models_named(selector: &Selector) -> Option<Arc<[Arc<str>]>> {
    let names_models =
        |term: &&crate::node::Term| term.key == GPU_MODEL_LABEL && term.operator == Operator::In;
    let term = selector.terms().iter().find(names_models)?;
    Some(term.values.iter().map(|value| Arc::from(value.as_str())).collect())
}

/// A typical shape and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypicalShape {
    /// The shape.
    pub shape: RequestShape,
    /// Its count, at least one. Shares are counts over the sum of all counts.
    pub count: u32,
}

/// The typical shapes, most frequent first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypicalShapes(Vec<TypicalShape>);

impl TypicalShapes {
    /// Returns the most frequent shapes of `counted` that cover 95% of all counts. Ties go to the
    /// smaller shape.
    ///
    /// There are at most [`TYPICAL_SHAPES_MAX`] shapes, naming at most [`TYPICAL_MODELS_MAX`] models. Any
    /// others are left out.
    #[must_use]
    pub fn covering(mut counted: Vec<(RequestShape, u32)>) -> Self {
        counted.retain(|&(_, count)| count > 0);
        counted.sort_unstable_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
        let all: u64 = counted.iter().map(|&(_, count)| u64::from(count)).sum();
        let mut covered = 0u64;
        let mut models = Vec::new();
        let mut typical = Vec::new();
        for (shape, count) in counted {
            if covered * 100 >= all * TYPICAL_COVER_PERCENT || typical.len() == TYPICAL_SHAPES_MAX {
                break;
            }
            let mut named = models.clone();
            for model in shape.models.iter().flat_map(|models| models.iter()) {
                if !named.contains(model) {
                    named.push(Arc::clone(model));
                }
            }
            if named.len() <= TYPICAL_MODELS_MAX {
                models = named;
                covered += u64::from(count);
                typical.push(TypicalShape { shape, count });
            }
        }
        Self(typical)
    }

    /// Returns the shapes, most frequent first.
    #[must_use]
    pub fn shapes(&self) -> &[TypicalShape] {
        &self.0
    }
}

/// Counts the shapes of arriving requests, and periodically updates the typical shapes.
///
/// Updates happen at the 1st, 2nd, 4th, … arrival, and then after every [`LEARN_INTERVAL_MAX`] arrivals. Each
/// of these later updates halves the counts, so shapes that no longer arrive are forgotten. The result is a
/// function of the arrivals alone. It is not durable: a restarted shard learns again.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    counts: FixedMap<RequestShape, u32>,
    arrivals: u64,
    typical: TypicalShapes,
}

impl Learner {
    /// Counts a request. Returns the typical shapes if they changed.
    pub fn handle_arrival(&mut self, request: &PlacementRequest) -> Option<&TypicalShapes> {
        self.arrivals += 1;
        let shape = RequestShape::of(request);
        if let Some(count) = self.counts.get_mut(&shape) {
            *count = count.saturating_add(1);
        } else {
            if self.counts.len() >= LEARNT_SHAPES_MAX {
                self.halve();
            }
            if self.counts.len() < LEARNT_SHAPES_MAX {
                self.counts.insert(shape, 1);
            }
        }
        let full = self.arrivals.is_multiple_of(LEARN_INTERVAL_MAX);
        let early = self.arrivals < LEARN_INTERVAL_MAX && self.arrivals.is_power_of_two();
        if !full && !early {
            return None;
        }
        let counted = self.counts.iter().map(|(shape, &count)| (shape.clone(), count)).collect();
        let typical = TypicalShapes::covering(counted);
        if full {
            self.halve();
        }
        if typical == self.typical {
            return None;
        }
        self.typical = typical;
        Some(&self.typical)
    }

    /// Returns the number of requests counted so far.
    #[cfg(test)]
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    fn halve(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Term;
    use crate::request::Policy;
    use crate::resource::Demand;

    fn shape(cpu: u32, gpu: GpuRequest) -> RequestShape {
        RequestShape { cpu: Amount::whole(cpu), gpu, models: None }
    }

    #[test]
    fn the_most_frequent_shapes_that_cover_95_percent_are_typical() {
        let counted = vec![
            (shape(3, GpuRequest::None), 4),
            (shape(2, GpuRequest::Whole(1)), 60),
            (shape(1, GpuRequest::Fraction(5000)), 35),
            (shape(9, GpuRequest::None), 1),
        ];
        let typical = TypicalShapes::covering(counted.clone());
        let cores: Vec<i64> = typical.shapes().iter().map(|t| t.shape.cpu.units() / Amount::SCALE).collect();
        assert_eq!(cores, [2, 1], "60 and 35 of 100 are 95 %");
        let mut more = counted;
        more[0].1 = 5;
        assert_eq!(TypicalShapes::covering(more).shapes().len(), 3, "95 of 101 are less");
        assert_eq!(TypicalShapes::covering(Vec::new()).shapes(), []);
    }

    #[test]
    fn shapes_beyond_the_limits_are_left_out() {
        let many = (0..2 * TYPICAL_SHAPES_MAX as u32).map(|cpu| (shape(cpu, GpuRequest::None), 1)).collect();
        assert_eq!(TypicalShapes::covering(many).shapes().len(), TYPICAL_SHAPES_MAX);
        let of_model = |model: usize| RequestShape {
            models: Some([Arc::from(format!("m{model}"))].into()),
            ..shape(1, GpuRequest::Whole(1))
        };
        let models = (0..2 * TYPICAL_MODELS_MAX).map(|model| (of_model(model), 1)).collect();
        assert_eq!(TypicalShapes::covering(models).shapes().len(), TYPICAL_MODELS_MAX);
    }

    fn request(cpu: u32) -> PlacementRequest {
        let demand = Demand { cpu: Amount::whole(cpu), gpu: GpuRequest::Whole(1), ..Demand::default() };
        PlacementRequest::new(demand, Policy::Fgd)
    }

    #[test]
    fn shapes_are_learnt_at_the_powers_of_two_and_forgotten_when_they_stop() {
        let mut learner = Learner::default();
        let cores = |typical: &TypicalShapes| -> Vec<i64> {
            typical.shapes().iter().map(|t| t.shape.cpu.units() / Amount::SCALE).collect()
        };
        assert_eq!(learner.handle_arrival(&request(1)).map(cores), Some(vec![1]));
        assert_eq!(learner.handle_arrival(&request(2)).map(cores), Some(vec![1, 2]));
        assert_eq!(learner.handle_arrival(&request(2)), None, "the third");
        assert_eq!(learner.handle_arrival(&request(2)).map(cores), Some(vec![2, 1]));
        let mut last = Vec::new();
        for _ in 0..4 * LEARN_INTERVAL_MAX {
            last = learner.handle_arrival(&request(3)).map_or(last, cores);
        }
        assert_eq!(last, [3]);
    }

    #[test]
    fn the_shapes_counted_are_bounded() {
        let mut learner = Learner::default();
        for cpu in 0..3 * LEARNT_SHAPES_MAX as u32 {
            learner.handle_arrival(&request(cpu));
            assert!(learner.counts.len() <= LEARNT_SHAPES_MAX);
        }
    }

    #[test]
    fn of_a_selector_the_models_count() {
        let mut asked = request(1);
        let term = |key: &str| Term {
            key: key.to_owned(),
            operator: Operator::In,
            values: vec!["T4".to_owned(), "P100".to_owned()],
        };
        asked.selector = Some(Arc::new(Selector::new(vec![term("zone"), term(GPU_MODEL_LABEL)])));
        let models = RequestShape::of(&asked).models.unwrap();
        assert_eq!(&models[..], [Arc::from("P100"), Arc::from("T4")]);
        asked.selector = Some(Arc::new(Selector::new(vec![term("zone")])));
        assert_eq!(RequestShape::of(&asked).models, None);
    }
}
