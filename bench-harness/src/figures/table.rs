//! Markdown tables from JSON rows.

use anyhow::bail;
use serde_json::Value;

/// The format of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A text or boolean, unchanged.
    Plain,
    /// A whole number with separators; a fraction is rounded.
    Count,
    /// With this number of decimal places.
    Decimals(usize),
    /// A number of nanoseconds, printed in microseconds with one decimal place.
    Microseconds,
    /// A number of nanoseconds, printed in milliseconds with one decimal place.
    Milliseconds,
    /// A number of bytes, printed in MiB with one decimal place.
    Mebibytes,
    /// The quotient of this column's number and another's in percent, with two decimal places.
    PercentOf(&'static str),
}

/// A column: its heading, the JSON pointer of its value in a row, and its format. A `null` is printed as a
/// dash.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The heading.
    pub title: &'static str,
    /// The JSON pointer.
    pub pointer: &'static str,
    /// The format.
    pub unit: Unit,
}

/// Returns the table, with a line break at its end.
///
/// # Errors
/// When a row lacks a column, or a value is not a number where one is expected.
pub(super) fn render(columns: &[Column], rows: &[Value]) -> anyhow::Result<String> {
    let mut table = String::new();
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    line(&mut table, &titles);
    line(&mut table, &vec!["---"; columns.len()]);
    for row in rows {
        let cells: Vec<String> =
            columns.iter().map(|column| cell(column, row)).collect::<anyhow::Result<_>>()?;
        line(&mut table, &cells);
    }
    Ok(table)
}

fn line(table: &mut String, cells: &[impl AsRef<str>]) {
    for cell in cells {
        table.push_str("| ");
        table.push_str(cell.as_ref());
        table.push(' ');
    }
    table.push_str("|\n");
}

fn cell(column: &Column, row: &Value) -> anyhow::Result<String> {
    let Some(value) = at_pointer(row, column.pointer) else {
        bail!("column {}: a row has no {}: {row}", column.title, column.pointer);
    };
    if value.is_null() {
        return Ok("–".to_owned());
    }
    if let (Unit::Plain, Some(text)) = (column.unit, value.as_str()) {
        return Ok(text.to_owned());
    }
    if column.unit == Unit::Plain {
        return Ok(value.to_string());
    }
    let Some(number) = value.as_f64() else {
        bail!("column {}: {} is no number: {value}", column.title, column.pointer);
    };
    Ok(match column.unit {
        Unit::Plain | Unit::Count => separated(number),
        Unit::Decimals(places) => format!("{number:.places$}"),
        Unit::Microseconds => format!("{:.1}", number / 1e3),
        Unit::Milliseconds => format!("{:.1}", number / 1e6),
        Unit::Mebibytes => format!("{:.1}", number / f64::from(1 << 20)),
        Unit::PercentOf(whole) => match row.pointer(whole).and_then(Value::as_f64) {
            Some(whole) if whole > 0.0 => format!("{:.2}", number / whole * 100.0),
            _ => bail!("column {}: a row has no positive {whole}: {row}", column.title),
        },
    })
}

/// Returns the value at a pointer. What is inside a `null` is `null`.
fn at_pointer<'a>(row: &'a Value, pointer: &str) -> Option<&'a Value> {
    row.pointer(pointer).or_else(|| {
        let (outer, _) = pointer.rsplit_once('/').filter(|(outer, _)| !outer.is_empty())?;
        at_pointer(row, outer).filter(|value| value.is_null())
    })
}

fn separated(number: f64) -> String {
    let digits = format!("{number:.0}");
    let (sign, digits) = digits.split_at(usize::from(digits.starts_with('-')));
    let mut text = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const fn column(title: &'static str, pointer: &'static str, unit: Unit) -> Column {
        Column { title, pointer, unit }
    }

    #[test]
    fn what_is_inside_a_null_is_a_dash() {
        let columns = [column("p99", "/latency/p99", Unit::Count)];
        let table = render(&columns, &[json!({"latency": null}), json!({"latency": {"p99": 7}})]);
        assert_eq!(table.expect("both rows have it"), "| p99 |\n| --- |\n| – |\n| 7 |\n");
        let error = render(&columns, &[json!({"latency": {}})]).expect_err("it lacks p99").to_string();
        assert!(error.contains("/latency/p99"), "{error}");
    }

    #[test]
    fn numbers_are_printed_by_unit() {
        let columns = [
            column("name", "/name", Unit::Plain),
            column("count", "/deep/count", Unit::Count),
            column("ratio", "/ratio", Unit::Decimals(2)),
            column("p99 µs", "/p99_ns", Unit::Microseconds),
            column("p99 ms", "/p99_ns", Unit::Milliseconds),
            column("MiB", "/bytes", Unit::Mebibytes),
            column("share %", "/ratio", Unit::PercentOf("/whole")),
            column("scan", "/scan", Unit::Count),
        ];
        let row = json!({
            "name": "steady", "deep": {"count": 1_234_567.4}, "ratio": 0.5, "p99_ns": 1_550_000, "bytes": 5 << 19, "whole": 2, "scan": null
        });
        let table = render(&columns, &[row]).expect("all columns");
        let last = table.lines().last().expect("a row");
        assert_eq!(last, "| steady | 1,234,567 | 0.50 | 1550.0 | 1.6 | 2.5 | 25.00 | – |");
        assert_eq!(table.lines().count(), 3);
    }

    #[test]
    fn a_missing_column_and_a_text_in_a_number_are_errors() {
        let columns = [column("count", "/count", Unit::Count)];
        let error = render(&columns, &[json!({"other": 1})]).expect_err("no column").to_string();
        assert!(error.contains("/count"), "{error}");
        assert!(render(&columns, &[json!({"count": "many"})]).is_err());
    }

    #[test]
    fn separators_are_every_three_digits() {
        for (number, text) in [(0.0, "0"), (999.0, "999"), (1_000.0, "1,000"), (-12_345.0, "-12,345")] {
            assert_eq!(separated(number), text);
        }
    }
}
