//! Reads Alibaba's GPU cluster trace of 2023 ("openb") as published: nodes
//! `sn,cpu_milli,memory_mib,gpu,model` and pods
//! `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`.
//!
//! Columns are found by the header's names. Columns that are not required may be absent, and unknown ones are
//! ignored. With `num_gpu` = 1 a pod takes `gpu_milli` thousandths of one GPU. With more it takes whole GPUs,
//! and with 0 none (`gpu_milli` is then checked but has no meaning). `gpu_spec` is a `|`-separated list of
//! acceptable models.
//!
//! Source: github.com/alibaba/clusterdata, `cluster-trace-gpu-v2023`; Weng et al., "Beware of Fragmentation",
//! USENIX ATC 2023.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use csv::{ReaderBuilder, StringRecord, Trim};
use wharf_core::limits::{AMOUNT_MAX, GPU_INSTANCES_MAX, NAME_BYTES_MAX, SELECTOR_TERMS_MAX};
use wharf_core::node::Selector;
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::resource::{Amount, Demand, GpuRequest};

use super::{Fault, Lifetime, Place, Trace, TraceError, TraceNode, TracePod, model_selector};

/// The most seconds that fit the engine's clock, which counts nanoseconds in 64 bits.
const TIME_MAX: i64 = (u64::MAX / 1_000_000_000) as i64;
/// One whole GPU in the trace's unit.
const GPU_MILLI: i64 = 1000;
/// Units of 1/10,000 in a thousandth.
const UNITS_PER_MILLI: i64 = Amount::SCALE / 1000;

/// Reads both files.
///
/// # Errors
/// The first fault in either file. Nothing is loaded then.
pub fn read(nodes: &Path, pods: &Path) -> Result<Trace, TraceError> {
    let open = |path: &Path| {
        let file = path.display().to_string();
        fs::File::open(path).map_err(|source| TraceError::Io { file, source })
    };
    let nodes_source = nodes.display().to_string();
    let pods_source = pods.display().to_string();
    let nodes = open(nodes)?;
    let pods = open(pods)?;
    Ok(Trace { nodes: read_nodes(nodes, &nodes_source)?, pods: read_pods(pods, &pods_source)?, pods_source })
}

/// Reads the nodes. `file` is the name in error messages.
///
/// # Errors
/// The first fault.
pub fn read_nodes(input: impl io::Read, file: &str) -> Result<Vec<TraceNode>, TraceError> {
    let columns = ["sn", "cpu_milli", "memory_mib", "gpu"];
    let mut names = HashMap::new();
    let mut models = Texts::default();
    read_rows(input, file, &columns, |row| {
        let name = row.name("sn", &mut names)?;
        let gpus = row.number("gpu", i64::MAX)?;
        if gpus > GPU_INSTANCES_MAX as i64 {
            return Err(row.fault("gpu", Fault::TooManyGpus(gpus)));
        }
        let model = row.text("model").unwrap_or("");
        if model.len() > NAME_BYTES_MAX {
            return Err(row.fault("model", Fault::LongName(model.len())));
        }
        Ok(TraceNode {
            name,
            cpu: row.amount("cpu_milli", UNITS_PER_MILLI)?,
            memory: row.amount("memory_mib", Amount::SCALE)?,
            gpus: u8::try_from(gpus).expect("at most 16"),
            model: (!model.is_empty()).then(|| models.share(model)),
        })
    })
}

/// Reads the pods. `file` is the name in error messages.
///
/// # Errors
/// The first fault.
pub fn read_pods(input: impl io::Read, file: &str) -> Result<Vec<TracePod>, TraceError> {
    let columns = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
    let mut names = HashMap::new();
    let mut selectors: HashMap<String, Arc<Selector>> = HashMap::new();
    read_rows(input, file, &columns, |row| {
        let name = row.name("name", &mut names)?;
        let demand = Demand {
            cpu: row.amount("cpu_milli", UNITS_PER_MILLI)?,
            memory: row.amount("memory_mib", Amount::SCALE)?,
            gpu: gpu_request(row)?,
            custom: None,
        };
        Ok(TracePod {
            name,
            line: row.line,
            demand,
            selector: selector(row, &mut selectors)?,
            lifetime: lifetime(row)?,
        })
    })
}

fn gpu_request(row: &Row<'_>) -> Result<GpuRequest, TraceError> {
    let devices = row.number("num_gpu", i64::MAX)?;
    if devices > GPU_INSTANCES_MAX as i64 {
        return Err(row.fault("num_gpu", Fault::TooManyGpus(devices)));
    }
    let milli = row.number("gpu_milli", i64::MAX)?;
    if milli > GPU_MILLI {
        return Err(row.fault("gpu_milli", Fault::AboveOneGpu(milli)));
    }
    match (devices, milli) {
        (0, _) => Ok(GpuRequest::None),
        (1, 0) => Err(row.fault("gpu_milli", Fault::NothingOfOneGpu)),
        (1, 1..GPU_MILLI) => {
            Ok(GpuRequest::Fraction(u16::try_from(milli * UNITS_PER_MILLI).expect("below one GPU")))
        }
        _ => Ok(GpuRequest::Whole(u8::try_from(devices).expect("at most 16"))),
    }
}

fn selector(
    row: &Row<'_>,
    known: &mut HashMap<String, Arc<Selector>>,
) -> Result<Option<Arc<Selector>>, TraceError> {
    let text = row.text("gpu_spec").unwrap_or("");
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(selector) = known.get(text) {
        return Ok(Some(Arc::clone(selector)));
    }
    let models: Vec<&str> = text.split('|').map(str::trim).collect();
    if models.iter().any(|model| model.is_empty()) {
        return Err(row.fault("gpu_spec", Fault::EmptyModel(text.to_owned())));
    }
    if models.len() > SELECTOR_TERMS_MAX {
        return Err(row.fault("gpu_spec", Fault::TooManyModels(models.len())));
    }
    if let Some(long) = models.iter().find(|model| model.len() > NAME_BYTES_MAX) {
        return Err(row.fault("gpu_spec", Fault::LongName(long.len())));
    }
    let selector = Arc::new(model_selector(models));
    known.insert(text.to_owned(), Arc::clone(&selector));
    Ok(Some(selector))
}

fn lifetime(row: &Row<'_>) -> Result<Lifetime, TraceError> {
    let time = |column| match row.text(column) {
        None | Some("") => Ok(None),
        Some(_) => row.number(column, TIME_MAX).map(|seconds| Some(seconds.unsigned_abs())),
    };
    let created = time("creation_time")?;
    let deleted = time("deletion_time")?;
    if let (Some(created), Some(deleted)) = (created, deleted)
        && deleted < created
    {
        return Err(row.fault("deletion_time", Fault::DeletedBeforeCreated { created, deleted }));
    }
    Ok(Lifetime { created, deleted })
}

/// Texts that occur in many rows, stored once.
#[derive(Default)]
struct Texts(HashMap<String, Arc<str>>);

impl Texts {
    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.0.insert(text.to_owned(), Arc::clone(&shared));
        shared
    }
}

/// One row with its header.
struct Row<'a> {
    file: &'a str,
    line: u64,
    header: &'a HashMap<String, usize>,
    record: &'a StringRecord,
}

impl Row<'_> {
    fn fault(&self, column: &str, fault: Fault) -> TraceError {
        let place = Place { file: self.file.to_owned(), line: self.line, column: column.to_owned() };
        TraceError::Cell { place, fault }
    }

    /// Returns the cell, if both the header and the row have it.
    fn text(&self, column: &str) -> Option<&str> {
        self.record.get(*self.header.get(column)?)
    }

    fn required(&self, column: &str) -> Result<&str, TraceError> {
        self.text(column).ok_or_else(|| self.fault(column, Fault::Missing))
    }

    fn number(&self, column: &str, most: i64) -> Result<i64, TraceError> {
        let text = self.required(column)?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.fault(column, Fault::NotANumber(text.to_owned())));
        }
        if text.starts_with('-') && digits.bytes().any(|b| b != b'0') {
            return Err(self.fault(column, Fault::Negative(text.to_owned())));
        }
        match digits.parse() {
            Ok(number) if number <= most => Ok(number),
            _ => Err(self.fault(column, Fault::TooLarge { found: text.to_owned(), most })),
        }
    }

    /// Parses an amount. One unit of the trace is `units` units of the engine.
    fn amount(&self, column: &str, units: i64) -> Result<Amount, TraceError> {
        let most = if is_planted(PlantedBug::TraceAmountUnchecked) { i64::MAX } else { AMOUNT_MAX / units };
        let number = self.number(column, most)?;
        Ok(Amount::try_from_units(number * units).expect("the bound was just checked"))
    }

    fn name(&self, column: &str, known: &mut HashMap<Arc<str>, u64>) -> Result<Arc<str>, TraceError> {
        let text = self.required(column)?;
        if text.is_empty() {
            return Err(self.fault(column, Fault::EmptyName));
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(self.fault(column, Fault::LongName(text.len())));
        }
        let name: Arc<str> = text.into();
        if let Some(first) = known.insert(Arc::clone(&name), self.line) {
            return Err(self.fault(column, Fault::Twice { name: text.to_owned(), first }));
        }
        Ok(name)
    }
}

fn read_rows<T>(
    input: impl io::Read,
    file: &str,
    required: &[&'static str],
    mut read_row: impl FnMut(&Row<'_>) -> Result<T, TraceError>,
) -> Result<Vec<T>, TraceError> {
    // Flexible, so that a row of the wrong length gets our error message, not the parser's.
    let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::All).from_reader(input);
    let headers = reader.headers().map_err(|error| csv_error(file, error))?;
    let columns = headers.len();
    let mut header = HashMap::new();
    for (at, name) in headers.iter().enumerate() {
        header.entry(name.to_owned()).or_insert(at);
    }
    if let Some(&column) = required.iter().find(|&&column| !header.contains_key(column)) {
        let expected = required.join(", ");
        return Err(TraceError::NoColumn { file: file.to_owned(), column, expected });
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(file, error))?;
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() > columns {
            let file = file.to_owned();
            let found = record.len();
            return Err(TraceError::SurplusFields { file, line, found, columns });
        }
        rows.push(read_row(&Row { file, line, header: &header, record: &record })?);
    }
    Ok(rows)
}

fn csv_error(file: &str, error: csv::Error) -> TraceError {
    let line = error.position().map_or(1, csv::Position::line);
    let file = file.to_owned();
    match error.into_kind() {
        csv::ErrorKind::Io(source) => TraceError::Io { file, source },
        csv::ErrorKind::Utf8 { err, .. } => TraceError::NotCsv { file, line, reason: err.to_string() },
        other => TraceError::NotCsv { file, line, reason: format!("{other:?}") },
    }
}
