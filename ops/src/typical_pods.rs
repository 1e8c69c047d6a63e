//! Reads the typical requests of the fragmentation-aware policies from a file.
//!
//! The file is a CSV with a header. Columns may be in any order; unknown columns are ignored. Required:
//! `cpu_milli`, `num_gpu`, `gpu_milli`. Optional: `gpu_spec` (GPU models separated by `|`; empty means any)
//! and `count` (default 1). A pod list of the openb trace is valid as it is, with each pod counted once. So
//! is a table of shapes with counts.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use csv::{ReaderBuilder, StringRecord, Trim};
use wharf_core::fragmentation::{RequestShape, TypicalShapes};
use wharf_core::limits::{GPU_INSTANCES_MAX, TYPICAL_MODELS_MAX};
use wharf_core::resource::{Amount, GpuRequest};

use crate::file_error::FileError;

/// Reads the typical shapes from a file.
///
/// # Errors
/// When the file cannot be read or has an invalid value. The error names the place and the remedy.
pub fn read(path: &Path) -> Result<TypicalShapes, FileError> {
    let file = File::open(path);
    read_from(path, file.map_err(|error| FileError::new(path, format_args!("cannot be read: {error}")))?)
}

/// Reads the typical shapes from the content of a file. `path` is its name in error messages.
///
/// # Errors
/// As [`read`].
pub fn read_from(path: &Path, input: impl Read) -> Result<TypicalShapes, FileError> {
    let unreadable = |error: csv::Error| FileError::new(path, format_args!("cannot be read: {error}"));
    let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(input);
    let header = reader.headers().map_err(unreadable)?.clone();
    let mut counts: HashMap<RequestShape, u32> = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        let (shape, count) = Row { path, header: &header, record: &record }.shape()?;
        let sum = counts.entry(shape).or_insert(0);
        *sum = sum.saturating_add(count);
    }
    if counts.is_empty() {
        let message = "no rows: give at least one pod, or leave the setting out";
        return Err(FileError::new(path, message));
    }
    let typical = TypicalShapes::covering(counts.into_iter().collect());
    if typical.shapes().is_empty() {
        let message = format_args!(
            "no row is typical: give counts above 0, and at most {TYPICAL_MODELS_MAX} GPU models"
        );
        return Err(FileError::new(path, message));
    }
    Ok(typical)
}

struct Row<'a> {
    path: &'a Path,
    header: &'a StringRecord,
    record: &'a StringRecord,
}

impl Row<'_> {
    fn text(&self, column: &'static str) -> Option<&str> {
        self.record.get(self.header.iter().position(|name| name == column)?)
    }

    fn wrong(&self, column: &'static str, remedy: &'static str) -> FileError {
        let line = self.record.position().map_or(0, csv::Position::line);
        let found = self.text(column).unwrap_or_default();
        FileError::new(self.path, format_args!("line {line}, {column}: `{found}` {remedy}"))
    }

    fn number(&self, column: &'static str, most: u32, remedy: &'static str) -> Result<u32, FileError> {
        if !self.header.iter().any(|name| name == column) {
            let message = format!("no column `{column}`: give cpu_milli, num_gpu and gpu_milli");
            return Err(FileError::new(self.path, message));
        }
        let number = self.text(column).and_then(|text| text.parse().ok()).filter(|&number| number <= most);
        number.ok_or_else(|| self.wrong(column, remedy))
    }

    fn shape(&self) -> Result<(RequestShape, u32), FileError> {
        let cpu = self.number("cpu_milli", u32::MAX, "is no count of thousandths of a core")?;
        let devices =
            self.number("num_gpu", GPU_INSTANCES_MAX as u32, "is no number of GPUs: give 0 to 16")?;
        let milli = self.number("gpu_milli", 1000, "is no part of one GPU: give 0 to 1000 thousandths")?;
        let gpu = match (devices, milli) {
            (0, _) => GpuRequest::None,
            (1, 0) => return Err(self.wrong("gpu_milli", "is nothing of one GPU: give 1 to 1000")),
            (1, 1..1000) => GpuRequest::Fraction(milli as u16 * 10),
            _ => GpuRequest::Whole(devices as u8),
        };
        let count = match self.text("count") {
            None => 1,
            Some(_) => self.number("count", u32::MAX, "is no count")?,
        };
        let models = self.text("gpu_spec").filter(|text| !text.is_empty()).map(|text| {
            let mut models: Vec<Arc<str>> = text.split('|').map(|model| model.trim().into()).collect();
            models.sort_unstable();
            models.dedup();
            models.into()
        });
        Ok((RequestShape { cpu: Amount::from_milli(cpu), gpu, models }, count))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn read_text(text: &str) -> Result<TypicalShapes, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn pods_are_counted_by_shape() {
        let typical = read_text(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\
             a,4000,1,1,500,\nb,8000,1,2,1000,T4|P100\nc,4000,2,1,500,\nd,4000,2,0,0,\n",
        )
        .unwrap();
        let shapes: Vec<_> = typical.shapes().iter().map(|t| (t.shape.gpu, t.count)).collect();
        let expected = [(GpuRequest::Fraction(5000), 2), (GpuRequest::None, 1), (GpuRequest::Whole(2), 1)];
        assert_eq!(shapes, expected);
        assert_eq!(typical.shapes()[2].shape.models.as_deref().unwrap(), ["P100".into(), "T4".into()]);
        let counted = read_text("count,cpu_milli,num_gpu,gpu_milli\n7,1000,1,1000\n").unwrap();
        assert_eq!(counted.shapes()[0].count, 7);
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_column() {
        let many: Vec<String> = (0..=TYPICAL_MODELS_MAX).map(|model| format!("m{model}")).collect();
        let many = format!("cpu_milli,num_gpu,gpu_milli,gpu_spec\n1,1,5,{}\n", many.join("|"));
        for (text, named) in [
            (&*many, "no row is typical"),
            ("cpu_milli,num_gpu,gpu_milli,count\n1,1,5,0\n", "no row is typical"),
            ("cpu_milli,num_gpu\n1,1\n", "no column `gpu_milli`"),
            ("cpu_milli,num_gpu,gpu_milli\n", "no rows"),
            ("cpu_milli,num_gpu,gpu_milli\n1,0,0\nx,1,1\n", "line 3, cpu_milli: `x`"),
            ("cpu_milli,num_gpu,gpu_milli\n1,17,1\n", "num_gpu: `17`"),
            ("cpu_milli,num_gpu,gpu_milli\n1,1,0\n", "gpu_milli: `0`"),
            ("cpu_milli,num_gpu,gpu_milli\n1,1\n", "gpu_milli: ``"),
            ("cpu_milli,num_gpu,gpu_milli,count\n1,1,5,-1\n", "count: `-1`"),
        ] {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
