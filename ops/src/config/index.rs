//! Settings of the index: dimensions, granularity, attribute orders and the coordinate function.

use wharf_core::index::{Dimension, Geometry, Weights};
use wharf_core::limits::{ATTRIBUTE_ORDERS_MAX, CUSTOM_DIMENSIONS_MAX, DIMENSIONS_MAX};
use wharf_core::resource::{Amount, shown_number};

use super::{ConfigError, Raw, value};

/// A dimension with its name and θ.
struct Named {
    name: String,
    dimension: Dimension,
    theta: i64,
    is_automatic: bool,
}

/// Parses θ. `auto` starts with the default and adapts to the nodes.
fn theta(at: &str, text: &str, default: i64) -> Result<(i64, bool), ConfigError> {
    if text.trim() == "auto" {
        return Ok((default, true));
    }
    let refused = |message: String| value("granularity", format!("`{at}`: {message}")).at(at);
    if text.trim().starts_with('-') {
        return Err(refused(format!("{} is negative: give at least 0.0001, or `auto`", shown_number(text))));
    }
    let theta: Amount = text.parse().map_err(|error| refused(format!("{error}, or `auto`")))?;
    if theta.is_zero() {
        return Err(refused("0 does not divide anything: give at least 0.0001, or `auto`".to_owned()));
    }
    Ok((theta.units(), false))
}

fn weight(at: &str, text: &str) -> Result<i64, ConfigError> {
    let refused = |message: String| value("weights", format!("`{at}`: {message}")).at(at);
    if text.trim().starts_with('-') {
        let message =
            "a node could have a smaller coordinate for what it has more, and be hidden: give at least 0";
        return Err(refused(format!("{} is negative: {message}", shown_number(text))));
    }
    Ok(text.parse::<Amount>().map_err(|error| refused(error.to_string()))?.units())
}

/// Returns the dimensions, attribute orders and coordinate function.
///
/// # Errors
/// When a setting is invalid. The error names the setting and the remedy.
pub(super) fn geometry(raw: &Raw) -> Result<Geometry, ConfigError> {
    let weights = weights(raw)?;
    let mut dimensions = dimensions(raw, weights.is_some())?;
    let orders = orders(raw, &dimensions)?;
    if let Some(first) = orders.first() {
        dimensions.sort_by_key(|named| first.iter().position(|&d| d == named.dimension));
    }
    let automatic: Vec<Dimension> =
        dimensions.iter().filter(|named| named.is_automatic).map(|named| named.dimension).collect();
    let thetas = dimensions.iter().map(|named| (named.dimension, named.theta)).collect();
    let geometry = Geometry::new(thetas)
        .map_err(|error| value("granularity", error.to_string()))?
        .with_automatic(&automatic)
        .with_orders(orders.get(1..).unwrap_or_default())
        .map_err(|error| value("attribute_orders", error.to_string()))?;
    Ok(match weights {
        Some(weights) => geometry.with_weights(weights),
        None => geometry,
    })
}

/// Returns all dimensions in the default order.
fn dimensions(raw: &Raw, weighted: bool) -> Result<Vec<Named>, ConfigError> {
    let default = Geometry::default();
    let own = |dimension| {
        let (_, theta) = default.dimensions().iter().find(|&&(d, _)| d == dimension)?;
        Some(*theta)
    };
    let unit = Amount::SCALE;
    let granularity = &raw.granularity;
    let mut all = Vec::new();
    let mut add = |name: &str, dimension, text: &str| {
        let at = format!("granularity.{name}");
        let (theta, is_automatic) = theta(&at, text, own(dimension).unwrap_or(unit))?;
        all.push(Named { name: name.to_owned(), dimension, theta, is_automatic });
        Ok::<(), ConfigError>(())
    };
    if weighted {
        add("weighted", Dimension::Weighted, &granularity.weighted)?;
    }
    add("cpu", Dimension::Cpu, &granularity.cpu)?;
    add("memory", Dimension::Memory, &granularity.memory)?;
    add("gpu_part", Dimension::LargestGpuPart, &granularity.gpu_part)?;
    let part = all.len() - 1;
    let name = "gpu".to_owned();
    let gpu = Named { name, dimension: Dimension::WholeGpus, theta: 1, is_automatic: false };
    all.insert(part, gpu);
    add_custom(raw, &mut all)?;
    Ok(all)
}

fn add_custom(raw: &Raw, all: &mut Vec<Named>) -> Result<(), ConfigError> {
    let refused = |message: String| value("indexed_resources", message);
    let room = CUSTOM_DIMENSIONS_MAX.min(DIMENSIONS_MAX - all.len());
    if raw.indexed_resources.len() > room {
        return Err(refused(format!(
            "{} kinds are a dimension too many in addition to {} others: give at most {room}",
            raw.indexed_resources.len(),
            all.len()
        )));
    }
    for (number, name) in (0..).zip(&raw.indexed_resources) {
        let refused = |message: String| refused(message).at(format!("indexed_resources.{number}"));
        wharf_net::convert::check_custom_name("indexed_resources", name)
            .map_err(|fault| refused(format!("`{name}`: {}", fault.message)))?;
        if all.iter().any(|known| known.name == *name) {
            return Err(refused(format!("`{name}` is a dimension already: give each once")));
        }
        let at = format!("granularity.resources.{name}");
        let text = raw.granularity.resources.get(name).map_or("1", String::as_str);
        let (theta, is_automatic) = theta(&at, text, Amount::SCALE)?;
        all.push(Named { name: name.clone(), dimension: Dimension::Custom(number), theta, is_automatic });
    }
    let kinds =
        [("granularity", raw.granularity.resources.keys()), ("weights", raw.weights.resources.keys())];
    for (key, names) in kinds {
        for name in names {
            if !raw.indexed_resources.contains(name) {
                let message =
                    format!("`{key}.resources.{name}`: it is not indexed: name it in `indexed_resources`");
                return Err(value(key, message).at(format!("{key}.resources.{name}")));
            }
        }
    }
    Ok(())
}

/// Checks the attribute orders and converts names to dimensions.
fn orders(raw: &Raw, dimensions: &[Named]) -> Result<Vec<Vec<Dimension>>, ConfigError> {
    let refused = |message: String| value("attribute_orders", message);
    if raw.attribute_orders.len() > ATTRIBUTE_ORDERS_MAX {
        let count = raw.attribute_orders.len();
        return Err(refused(format!("{count} orders: give at most {ATTRIBUTE_ORDERS_MAX}")));
    }
    let names: Vec<&str> = dimensions.iter().map(|named| &*named.name).collect();
    let names = names.join(", ");
    let mut orders = Vec::new();
    for (number, written) in (1_usize..).zip(&raw.attribute_orders) {
        let refused = |message| refused(message).at(format!("attribute_orders.{}", number - 1));
        let mut order: Vec<Dimension> = Vec::new();
        for (place, name) in (1..).zip(written) {
            let known = dimensions.iter().find(|named| named.name == *name).ok_or_else(|| {
                refused(format!(
                    "order {number}, place {place}: `{name}` is no dimension: give each of {names} once"
                ))
            })?;
            if order.contains(&known.dimension) {
                return Err(refused(format!(
                    "order {number}, place {place}: `{name}` is given twice: give each of {names} once"
                )));
            }
            order.push(known.dimension);
        }
        if let Some(missing) = dimensions.iter().find(|named| !order.contains(&named.dimension)) {
            return Err(refused(format!(
                "order {number}: `{}` is missing after place {}: give each of {names} once",
                missing.name,
                written.len()
            )));
        }
        orders.push(order);
    }
    Ok(orders)
}

/// Returns the weights, if the coordinate function is `weighted`.
fn weights(raw: &Raw) -> Result<Option<Weights>, ConfigError> {
    let weights = &raw.weights;
    let named = [
        ("weights.cpu".to_owned(), Dimension::Cpu, &weights.cpu),
        ("weights.memory".to_owned(), Dimension::Memory, &weights.memory),
        ("weights.gpu".to_owned(), Dimension::WholeGpus, &weights.gpu),
        ("weights.gpu_part".to_owned(), Dimension::LargestGpuPart, &weights.gpu_part),
    ];
    let custom = (0..).zip(&raw.indexed_resources).filter_map(|(number, name)| {
        let text = weights.resources.get(name)?;
        // Too many kinds are rejected in `dimensions`.
        let is_dimension = usize::from(number) < CUSTOM_DIMENSIONS_MAX;
        is_dimension.then(|| (format!("weights.resources.{name}"), Dimension::Custom(number), text))
    });
    let mut weights = Vec::new();
    for (at, dimension, text) in named.into_iter().chain(custom) {
        weights.push((dimension, weight(&at, text)?));
    }
    match raw.coordinates.as_str() {
        "granular" if weights.iter().all(|&(_, weight)| weight == 0) => Ok(None),
        "granular" => {
            Err(value("weights", "they are of no use: set `coordinates` to weighted, or leave them out"))
        }
        "weighted" => Weights::new(&weights).map(Some).map_err(|error| value("weights", error.to_string())),
        other => Err(value(
            "coordinates",
            format!("`{other}` is no coordinate function: give granular or weighted"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(change: impl FnOnce(&mut Raw)) -> Result<Geometry, String> {
        let mut raw = Raw::default();
        change(&mut raw);
        geometry(&raw).map_err(|error| error.to_string())
    }

    fn order(names: &str) -> Vec<String> {
        names.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_first_order_is_that_of_the_dimensions() {
        assert_eq!(settings(|_| ()), Ok(Geometry::default()));
        let geometry = settings(|s| {
            s.attribute_orders =
                vec![order("nic memory cpu gpu_part gpu"), order("gpu gpu_part cpu memory nic")];
            s.indexed_resources = vec!["nic".to_owned()];
            s.granularity.memory = "auto".to_owned();
            s.granularity.resources.insert("nic".to_owned(), "2.5".to_owned());
        });
        let geometry = geometry.unwrap();
        assert_eq!(geometry.order_count(), 2);
        assert_eq!(geometry.dimensions()[0], (Dimension::Custom(0), 25_000));
        assert_eq!((geometry.leading(0), geometry.leading(1)), (Dimension::Custom(0), Dimension::WholeGpus));
        assert!(geometry.is_automatic(1) && !geometry.is_automatic(0));
    }

    #[test]
    fn weights_make_a_leading_dimension() {
        let geometry = settings(|s| {
            s.coordinates = "weighted".to_owned();
            (s.weights.cpu, s.weights.gpu) = ("1".to_owned(), "100".to_owned());
        });
        let geometry = geometry.unwrap();
        assert_eq!((geometry.dimension_count(), geometry.leading(0)), (5, Dimension::Weighted));
    }

    #[test]
    fn what_cannot_be_is_named_with_its_place_and_remedy() {
        type Change = fn(&mut Raw);
        let cases: [(Change, &[&str]); 16] = [
            (
                |s| s.attribute_orders = vec![order("cpu memory gpu disk")],
                &["`attribute_orders`", "order 1, place 4", "`disk`", "gpu_part"],
            ),
            (
                |s| {
                    s.attribute_orders = vec![order("cpu memory gpu_part gpu"), order("cpu cpu gpu gpu_part")]
                },
                &["order 2, place 2", "twice"],
            ),
            (|s| s.attribute_orders = vec![order("cpu memory gpu")], &["order 1", "`gpu_part` is missing"]),
            (|s| s.attribute_orders = vec![Vec::new()], &["order 1", "`cpu` is missing"]),
            (|s| s.attribute_orders = vec![order("cpu memory gpu gpu_part"); 9], &["9 orders", "at most 8"]),
            (|s| s.indexed_resources = order("a b c d e"), &["`indexed_resources`", "too many", "at most 4"]),
            (|s| s.indexed_resources = order("a cpu"), &["`indexed_resources`", "`cpu`"]),
            (|s| s.indexed_resources = order("a a"), &["`a` is a dimension already"]),
            (|s| s.granularity.cpu = "0".to_owned(), &["`granularity.cpu`", "at least 0.0001"]),
            (|s| s.granularity.cpu = "-1".to_owned(), &["`granularity.cpu`", "negative", "at least 0.0001"]),
            (|s| s.granularity.memory = "often".to_owned(), &["`granularity.memory`", "`auto`"]),
            (
                |s| drop(s.granularity.resources.insert("nic".to_owned(), "1".to_owned())),
                &["`granularity.resources.nic`", "`indexed_resources`"],
            ),
            (|s| s.coordinates = "cubic".to_owned(), &["`coordinates`", "granular or weighted"]),
            (|s| s.weights.cpu = "1".to_owned(), &["`weights`", "`coordinates`"]),
            (|s| s.coordinates = "weighted".to_owned(), &["`weights`", "above 0"]),
            (|s| s.weights.memory = "-1".to_owned(), &["`weights.memory`", "hidden"]),
        ];
        for (change, named) in cases {
            let error = settings(change).unwrap_err();
            assert!(named.iter().all(|part| error.contains(part)), "{error}: {named:?}");
        }
        let weighted = |s: &mut Raw| {
            s.coordinates = "weighted".to_owned();
            s.weights.cpu = "1".to_owned();
            s.indexed_resources = order("a b c d");
        };
        assert!(settings(weighted).unwrap_err().contains("at most 3"));
    }
}
