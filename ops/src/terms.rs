//! Label terms, taints and tolerations as command lines and files write them: our own notation, and those of
//! Kubernetes and Ray if they mean the same.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use wharf_net::protocol::{
    EFFECT_ANY, FallbackSelector, Name, OPERATOR_EQUAL, OPERATOR_EXISTS, OPERATOR_GREATER, OPERATOR_IN,
    OPERATOR_LESS, OPERATOR_NOT_EXISTS, OPERATOR_NOT_IN, PreferredSelector, SelectorTerm, Taint, Toleration,
};

/// A text that cannot be read, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misspelt(String);

const SPELLINGS: &str = "give KEY=VALUE, KEY=ONE|OTHER, KEY!=VALUE, KEY in (ONE,OTHER), KEY notin (ONE,OTHER), \
                         KEY>NUMBER, KEY<NUMBER, KEY or !KEY";

fn values(text: &str, between: char) -> Vec<Name> {
    text.split(between).map(str::trim).filter(|v| !v.is_empty()).map(|v| Name(v.to_owned())).collect()
}

/// Parses a list of values in parentheses.
fn listed(text: &str) -> Option<Vec<Name>> {
    Some(values(text.trim().strip_prefix('(')?.strip_suffix(')')?, ','))
}

/// Parses the part after `KEY=`: alternatives, or one of Ray's `in(…)`, `!in(…)` and `!VALUE`.
fn equated(text: &str) -> (u8, Vec<Name>) {
    if let Some(list) = text.strip_prefix("!in").and_then(listed) {
        (OPERATOR_NOT_IN, list)
    } else if let Some(list) = text.strip_prefix("in").and_then(listed) {
        (OPERATOR_IN, list)
    } else if let Some(value) = text.strip_prefix('!') {
        (OPERATOR_NOT_IN, values(value, '|'))
    } else {
        (OPERATOR_IN, values(text, '|'))
    }
}

/// Parses one term.
pub(crate) fn term(text: &str) -> Result<SelectorTerm, Misspelt> {
    let trimmed = text.trim();
    let set = |word: &str| {
        let (key, list) = trimmed.split_once(word)?;
        Some((key, listed(list)?))
    };
    let (key, operator, values) = if let Some((key, list)) = set(" notin ") {
        (key, OPERATOR_NOT_IN, list)
    } else if let Some((key, list)) = set(" in ") {
        (key, OPERATOR_IN, list)
    } else if let Some((key, text)) = trimmed.split_once("!=") {
        (key, OPERATOR_NOT_IN, values(text, '|'))
    } else if let Some((key, text)) = trimmed.split_once('=') {
        let (operator, values) = equated(text.strip_prefix('=').unwrap_or(text).trim());
        (key, operator, values)
    } else if let Some((key, number)) = trimmed.split_once('>') {
        (key, OPERATOR_GREATER, values(number, '|'))
    } else if let Some((key, number)) = trimmed.split_once('<') {
        (key, OPERATOR_LESS, values(number, '|'))
    } else if let Some(key) = trimmed.strip_prefix('!') {
        (key, OPERATOR_NOT_EXISTS, Vec::new())
    } else {
        (trimmed, OPERATOR_EXISTS, Vec::new())
    };
    let key = key.trim();
    let wants_values = !matches!(operator, OPERATOR_EXISTS | OPERATOR_NOT_EXISTS);
    let compares = matches!(operator, OPERATOR_GREATER | OPERATOR_LESS);
    let is_integer = |value: &Name| value.0.parse::<i64>().is_ok();
    if key.is_empty()
        || key.contains(char::is_whitespace)
        || wants_values == values.is_empty()
        || (compares && !(values.len() == 1 && is_integer(&values[0])))
    {
        return Err(Misspelt(SPELLINGS.to_owned()));
    }
    Ok(SelectorTerm { key: key.to_owned(), operator, values })
}

/// Parses terms separated by `;`.
fn terms(text: &str) -> Result<Vec<SelectorTerm>, Misspelt> {
    text.split(';').filter(|part| !part.trim().is_empty()).map(term).collect()
}

/// Parses `TERM;TERM`; an empty text matches every node.
pub(crate) fn fallback(text: &str) -> Result<FallbackSelector, Misspelt> {
    Ok(FallbackSelector { terms: terms(text)? })
}

/// Parses `TERM;TERM:WEIGHT`. The weight is 1 if no number follows the last colon.
pub(crate) fn preferred(text: &str) -> Result<PreferredSelector, Misspelt> {
    let weighted =
        text.rsplit_once(':').and_then(|(terms, weight)| Some((terms, weight.trim().parse().ok()?)));
    let (conditions, weight) = weighted.unwrap_or((text, 1));
    let terms = terms(conditions)?;
    if terms.is_empty() {
        return Err(Misspelt(format!("give TERM:WEIGHT; {SPELLINGS}")));
    }
    Ok(PreferredSelector { weight, terms })
}

/// The names of taint effects, by number.
const EFFECTS: [&str; 4] = ["any", "NoSchedule", "PreferNoSchedule", "NoExecute"];

fn effect(text: &str) -> Option<u8> {
    (0..).zip(EFFECTS).skip(1).find(|&(_, name)| name == text).map(|(number, _)| number)
}

/// Returns the name of a taint effect, as parsed by [`taint`].
pub(crate) fn effect_name(number: u8) -> &'static str {
    EFFECTS.get(usize::from(number)).copied().unwrap_or("unknown")
}

/// Parses `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
pub(crate) fn taint(text: &str) -> Result<Taint, Misspelt> {
    let read = || {
        let (taint, effect_text) = text.rsplit_once(':')?;
        let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
        let effect = effect(effect_text)?;
        (!key.is_empty()).then(|| Taint { key: key.to_owned(), value: value.to_owned(), effect })
    };
    read().ok_or_else(|| {
        let remedy = "give KEY=VALUE:EFFECT or KEY:EFFECT, with NoSchedule, PreferNoSchedule or NoExecute";
        Misspelt(remedy.to_owned())
    })
}

/// Parses `KEY=VALUE:EFFECT`, `KEY=VALUE`, `KEY:EFFECT` or `KEY`; `*` matches every key.
pub(crate) fn toleration(text: &str) -> Result<Toleration, Misspelt> {
    let (taint, effect) = match text.rsplit_once(':') {
        Some((taint, name)) => (taint, effect(name)),
        None => (text, Some(EFFECT_ANY)),
    };
    let (key, operator, value) = match taint.split_once('=') {
        Some((key, value)) => (key, OPERATOR_EQUAL, value),
        None => (taint, OPERATOR_EXISTS, ""),
    };
    let all = key == "*" && operator == OPERATOR_EXISTS;
    let Some(effect) = effect.filter(|_| !key.is_empty() && (all || key != "*")) else {
        let remedy =
            "give KEY, KEY=VALUE or `*`, and after a colon NoSchedule, PreferNoSchedule or NoExecute";
        return Err(Misspelt(remedy.to_owned()));
    };
    let key = if all { "" } else { key };
    Ok(Toleration { key: key.to_owned(), operator, value: value.to_owned(), effect })
}

/// Conditions of a file: labels with their values, as in `{zone: a}`, or a list of terms.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectorFile(Vec<SelectorTerm>);

impl SelectorFile {
    /// Returns the terms, all of which must hold.
    pub(crate) fn terms(&self) -> Vec<SelectorTerm> {
        self.0.clone()
    }
}

impl<'de> Deserialize<'de> for SelectorFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LabelsOrTerms;
        impl<'de> Visitor<'de> for LabelsOrTerms {
            type Value = SelectorFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels with their values, or a list of terms")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SelectorFile, A::Error> {
                let mut terms = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    terms.push(SelectorTerm { key, operator: OPERATOR_IN, values: vec![Name(value)] });
                }
                Ok(SelectorFile(terms))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<SelectorFile, A::Error> {
                let mut terms = Vec::new();
                while let Some(Written(term)) = texts.next_element()? {
                    terms.push(term);
                }
                Ok(SelectorFile(terms))
            }
        }
        deserializer.deserialize_any(LabelsOrTerms)
    }
}

/// A term of a list.
struct Written(SelectorTerm);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, "term of a selector", term).map(Self)
    }
}

/// A toleration of a file.
#[derive(Clone, Debug)]
pub(crate) struct TolerationFile(Toleration);

impl TolerationFile {
    /// Returns the toleration.
    pub(crate) fn toleration(&self) -> Toleration {
        self.0.clone()
    }
}

impl<'de> Deserialize<'de> for TolerationFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, "toleration", toleration).map(Self)
    }
}

/// Reads a text as command lines have it. A fault names the text.
fn read<'de, D: Deserializer<'de>, T>(
    from: D,
    what: &str,
    parse: fn(&str) -> Result<T, Misspelt>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|error| de::Error::custom(format!("`{text}` is no {what}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_in_every_spelling() {
        let read = |text: &str| {
            let values =
                |t: &SelectorTerm| t.values.iter().map(|v| v.0.as_str()).collect::<Vec<_>>().join(" ");
            term(text).map(|t| format!("{} {} [{}]", t.key, t.operator, values(&t))).ok()
        };
        for (text, expected) in [
            ("gpu-model=T4|P100", "gpu-model 1 [T4 P100]"),
            ("gpu-model in (T4, P100)", "gpu-model 1 [T4 P100]"),
            ("gpu-model=in(T4,P100)", "gpu-model 1 [T4 P100]"),
            ("zone==a", "zone 1 [a]"),
            ("zone!=a", "zone 2 [a]"),
            ("zone=!a", "zone 2 [a]"),
            ("zone notin (a,b)", "zone 2 [a b]"),
            ("zone=!in(a,b)", "zone 2 [a b]"),
            ("zone=inner", "zone 1 [inner]"),
            ("cores>8", "cores 5 [8]"),
            ("cores < -8", "cores 6 [-8]"),
            ("ssd", "ssd 3 []"),
            ("!ssd", "ssd 4 []"),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for broken in [
            "",
            "=a",
            "zone=",
            "zone!=",
            "!",
            "=",
            "zone=|",
            "a b",
            "cores>",
            "cores>many",
            "cores>1|2",
            "k in ()",
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    #[test]
    fn files_have_labels_or_terms_and_tolerations() {
        #[derive(Debug, Deserialize)]
        struct Task {
            #[serde(default)]
            selector: SelectorFile,
            #[serde(default)]
            tolerations: Vec<TolerationFile>,
        }
        let read = |text: &str| crate::line_error::documents::<Task>(text).map(|mut all| all.remove(0));
        let terms = |text: &str| {
            let terms = read(text).map(|task| task.selector.terms());
            terms.map(|all| {
                all.into_iter().map(|of| (of.key, of.operator, of.values.len())).collect::<Vec<_>>()
            })
        };
        let of = |key: &str, operator, values| (key.to_owned(), operator, values);
        let labels = terms("selector: {zone: a, kind: 'b|c'}").unwrap();
        assert_eq!(labels, [of("zone", OPERATOR_IN, 1), of("kind", OPERATOR_IN, 1)]);
        let listed = terms("selector: [zone=a|b, '!spot', cores>8, 'kind notin (x,y)']").unwrap();
        let expected =
            [("zone", OPERATOR_IN, 2), ("spot", OPERATOR_NOT_EXISTS, 0), ("cores", OPERATOR_GREATER, 1)];
        assert_eq!(listed[..3], expected.map(|(key, operator, values)| of(key, operator, values)));
        assert_eq!(listed[3], of("kind", OPERATOR_NOT_IN, 2));
        assert!(terms("tolerations: []").unwrap().is_empty());
        let tolerated = read("tolerations: ['team=ml:NoSchedule', '*']").unwrap().tolerations;
        let tolerated: Vec<_> = tolerated.iter().map(TolerationFile::toleration).collect();
        assert_eq!((&*tolerated[0].key, &*tolerated[0].value, tolerated[0].effect), ("team", "ml", 1));
        assert_eq!((&*tolerated[1].key, tolerated[1].operator), ("", OPERATOR_EXISTS));
        for (text, line, part) in [
            ("x: 1\nselector: [zone=]", 2, "`zone=` is no term of a selector: give KEY=VALUE"),
            ("selector: 3", 1, "labels with their values, or a list of terms"),
            ("x: 1\ntolerations:\n- team:Never", 3, "`team:Never` is no toleration: give KEY"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.line == line && error.message.contains(part), "{error} for {text}");
        }
    }

    #[test]
    fn preferences_taints_and_tolerations_are_read() {
        let weighted = preferred("zone in (a,b);ssd:10").map(|p| (p.weight, p.terms.len())).ok();
        assert_eq!(weighted, Some((10, 2)));
        assert_eq!(preferred("ssd").map(|p| p.weight).ok(), Some(1));
        assert!(preferred(":10").unwrap_err().to_string().starts_with("give TERM:WEIGHT;"));
        assert_eq!(fallback("").map(|f| f.terms.len()).ok(), Some(0));
        assert!(fallback("a b;c").is_err());
        let read = |text: &str| taint(text).map(|t| (t.key, t.value, t.effect)).ok();
        assert_eq!(read("team=ml:NoSchedule"), Some(("team".into(), "ml".into(), 1)));
        assert_eq!(read("spot:PreferNoSchedule"), Some(("spot".into(), String::new(), 2)));
        for broken in ["team", "team=ml", "team:Never", ":NoExecute", ""] {
            assert_eq!(read(broken), None, "{broken}");
        }
        let read = |text: &str| toleration(text).map(|t| (t.key, t.operator, t.value, t.effect)).ok();
        assert_eq!(read("team=ml"), Some(("team".into(), OPERATOR_EQUAL, "ml".into(), 0)));
        assert_eq!(read("*"), Some((String::new(), OPERATOR_EXISTS, String::new(), 0)));
        assert_eq!(read("*:NoExecute"), Some((String::new(), OPERATOR_EXISTS, String::new(), 3)));
        for broken in ["", "team:Never", "*=a", ":NoSchedule"] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
