//! Priority classes as files describe them: those of `wharf priority-class set`, of files of jobs, and of scenarios.
//!
//! In a file with jobs, they are names of this file, and come before those of the service.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use wharf_core::limits::{CLASS_DESCRIPTION_BYTES_MAX, CLASS_NAME_BYTES_MAX};

use crate::job_file::{PriorityFile, yes};
use crate::line_error::LineError;

/// A priority class: its priority alone (`high: 1000`), or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassFile {
    pub(crate) value: i32,
    pub(crate) preempts: bool,
    pub(crate) is_default: bool,
    pub(crate) description: String,
}

/// The priority classes of a file by name, each with its line.
pub(crate) type ClassesFile = BTreeMap<String, Spanned<ClassFile>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    value: i32,
    #[serde(default = "yes")]
    preempts: bool,
    #[serde(default)]
    default: bool,
    #[serde(default)]
    description: String,
}

impl<'de> Deserialize<'de> for ClassFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Class)
    }
}

struct Class;

impl Class {
    fn of_value<E: de::Error>(value: impl TryInto<i32> + fmt::Display + Copy) -> Result<ClassFile, E> {
        let wrong = |_| {
            let least = i32::MIN;
            let most = i32::MAX;
            E::custom(format!(
                "the priority of a class is {value}: give a whole number from {least} to {most}"
            ))
        };
        let value = value.try_into().map_err(wrong)?;
        Ok(ClassFile { value, preempts: true, is_default: false, description: String::new() })
    }
}

impl<'de> Visitor<'de> for Class {
    type Value = ClassFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the priority of a class, or its `value`, `preempts`, `default` and `description`")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ClassFile, E> {
        Self::of_value(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ClassFile, E> {
        Self::of_value(value)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ClassFile, A::Error> {
        let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
        let Fields { value, preempts, default: is_default, description } = fields;
        Ok(ClassFile { value, preempts, is_default, description })
    }
}

/// Checks names and descriptions, and that at most one class is the default.
pub(crate) fn check_classes(classes: &ClassesFile) -> Result<(), LineError> {
    let mut default = None;
    for (name, class) in classes {
        let at = |message: String| Err(LineError::at(class.referenced, message));
        check_class_name(name, class.referenced)?;
        let bytes = class.value.description.len();
        if bytes > CLASS_DESCRIPTION_BYTES_MAX {
            let most = CLASS_DESCRIPTION_BYTES_MAX;
            return at(format!(
                "the description of priority class `{name}` has {bytes} bytes: give at most {most}"
            ));
        }
        let first = default.filter(|_| class.value.is_default);
        if let Some(first) = first {
            return at(format!(
                "priority classes `{first}` and `{name}` are both the default: leave `default` out of one"
            ));
        }
        if class.value.is_default {
            default = Some(name);
        }
    }
    Ok(())
}

/// Checks the name of a class, which the service may have.
pub(crate) fn check_class_name(name: &str, place: Location) -> Result<(), LineError> {
    let bytes = name.len();
    if bytes == 0 || bytes > CLASS_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!(
            "the name of a priority class has {bytes} bytes: give 1 to {CLASS_NAME_BYTES_MAX} without control characters"
        );
        return Err(LineError::at(place, message));
    }
    Ok(())
}

/// Returns the class of a file that a job of it has, if it has one: the one that it names, or the default.
pub(crate) fn class_of_job<'a>(
    file: Option<&PriorityFile>,
    classes: &'a ClassesFile,
) -> Option<&'a ClassFile> {
    match file {
        None => classes.values().map(|class| &class.value).find(|class| class.is_default),
        Some(PriorityFile::Number(_)) => None,
        Some(PriorityFile::Class(name)) => classes.get(name).map(|class| &class.value),
    }
}

/// Returns a priority by its class or number. All classes are in the file.
pub(crate) fn priority(
    file: Option<&PriorityFile>,
    classes: &ClassesFile,
    otherwise: i32,
    place: Location,
) -> Result<i32, LineError> {
    let (number, missing) = asked(file, classes, place)?;
    if !missing.is_empty() {
        let message = format!("there is no priority class `{missing}`: add it to `priority_classes`");
        return Err(LineError::at(place, message));
    }
    Ok(number.unwrap_or(otherwise))
}

/// Returns a priority as a service takes it: the number, if there is one, and the name of a class that the file has not.
pub(crate) fn asked(
    file: Option<&PriorityFile>,
    classes: &ClassesFile,
    place: Location,
) -> Result<(Option<i32>, String), LineError> {
    match file {
        None => Ok((None, String::new())),
        Some(PriorityFile::Number(number)) => Ok((Some(*number), String::new())),
        Some(PriorityFile::Class(name)) => match classes.get(name) {
            Some(class) => Ok((Some(class.value.value), String::new())),
            None => {
                check_class_name(name, place)?;
                Ok((None, name.clone()))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_file::JobsFile;
    use crate::line_error::documents;

    fn read(text: &str) -> Result<ClassesFile, LineError> {
        let mut files: Vec<JobsFile> = documents(text)?;
        let classes = files.remove(0).priority_classes;
        check_classes(&classes)?;
        Ok(classes)
    }

    #[test]
    fn a_class_is_a_number_or_has_fields() {
        let classes = read(
            "
priority_classes:
  low: -5
  high: {value: 1000, preempts: false, default: true, description: for few}
",
        )
        .unwrap();
        let low = ClassFile { value: -5, preempts: true, is_default: false, description: String::new() };
        let high =
            ClassFile { value: 1_000, preempts: false, is_default: true, description: "for few".to_owned() };
        let read: Vec<_> = classes.iter().map(|(name, class)| (&**name, &class.value)).collect();
        assert_eq!(read, [("high", &high), ("low", &low)]);
        let lines: Vec<u64> = classes.values().map(|class| class.referenced.line()).collect();
        assert_eq!(lines, [4, 3]);
    }

    #[test]
    fn a_fault_in_a_class_names_its_line_and_a_remedy() {
        let long = |bytes: usize| "n".repeat(bytes);
        let cases = [
            ("a: 3000000000".to_owned(), "from -2147483648 to 2147483647"),
            ("a: high".to_owned(), "the priority of a class"),
            ("a: {preempts: true}".to_owned(), "value"),
            ("a: {value: 1, global: true}".to_owned(), "global"),
            (format!("{}: 1", long(65)), "has 65 bytes: give 1 to 64"),
            (format!("a: {{value: 1, description: {}}}", long(257)), "has 257 bytes: give at most 256"),
            ("a: {value: 1, default: true}\n  b: {value: 2, default: true}".to_owned(), "both the default"),
        ];
        for (class, part) in cases {
            let text = format!("priority_classes:\n  {class}\n");
            let error = read(&text).expect_err(&text);
            let line = 2 + class.matches('\n').count() as u64;
            assert!(error.line == line && error.message.contains(part), "{error} for\n{text}");
        }
    }
}
