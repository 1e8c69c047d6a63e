//! An independent check of a placements file against its trace.
//!
//! It deliberately shares no code with the reader, the driver or the engine: it splits the rows itself,
//! counts in the trace's own thousandths, and keeps its own books. A bug in any of those cannot hide here. It
//! checks that
//! - every pod of the trace has one row, in the trace's order, and no other pod has one;
//! - no node is over-allocated in cpu or memory, and no GPU beyond itself, at any time;
//! - a pod that asks for whole GPUs has that number of whole ones;
//! - a part of a GPU is a part of one GPU;
//! - a constrained pod is on a node of an accepted model;
//! - optionally, no pod was refused that some node could have held.

use std::collections::HashMap;

/// The check of pods that were not placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusals {
    /// No check.
    #[default]
    Accepted,
    /// No node could hold the pod when it arrived. Expected if pods are decided one at a time.
    AtTheirMoment,
    /// No node could hold the pod at the end. Expected if no pod leaves.
    AtTheEnd,
}

/// Options of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// The check of pods that were not placed.
    pub refusals: Refusals,
    /// True if pods leave at their deletion time.
    pub departures: bool,
}

/// The sums of a valid placements file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of rows.
    pub pods: u64,
    /// Pods with a node.
    pub placed: u64,
    /// Pods with a constraint on the model.
    pub constrained: u64,
    /// Constrained pods with a node.
    pub constrained_placed: u64,
    /// Placed pods with more than one GPU.
    pub multi_gpu_placed: u64,
    /// GPU capacity allocated at the end, in thousandths of a GPU.
    pub gpu_allocated_milli: u64,
    /// CPU allocated at the end, in thousandths of a core.
    pub cpu_allocated_milli: u64,
}

/// A fault in a placements file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A file is not CSV with the required columns.
    #[error("{file}: line {line}: {reason}")]
    Unreadable {
        /// The file: nodes, pods or placements.
        file: &'static str,
        /// The line number.
        line: usize,
        /// The cause.
        reason: String,
    },
    /// The rows are not the pods of the trace.
    #[error("row {row} of the placements should be pod `{expected}`, and is `{found}`")]
    WrongPod {
        /// The row, counted from 1 without the header.
        row: usize,
        /// The pod in the trace; empty if the trace has ended.
        expected: String,
        /// The pod in the file; empty if the file has ended.
        found: String,
    },
    /// The node is not in the trace.
    #[error("pod `{pod}` is placed on `{node}`, which is no node of the trace")]
    UnknownNode {
        /// The pod.
        pod: String,
        /// The node.
        node: String,
    },
    /// The row has GPU instances but no node.
    #[error("pod `{pod}` has GPUs and no node")]
    GpusWithoutNode {
        /// The pod.
        pod: String,
    },
    /// The pod takes more than the node has left.
    #[error("node `{node}` is over-allocated: pod `{pod}` takes {asked} {resource}, {free} are free")]
    OverAllocated {
        /// The node.
        node: String,
        /// The pod.
        pod: String,
        /// The resource.
        resource: &'static str,
        /// The amount that the pod takes.
        asked: i64,
        /// The amount that is left.
        free: i64,
    },
    /// The pod takes more than the GPU has left. Also applies to whole GPUs.
    #[error(
        "GPU {gpu} of node `{node}` is over-allocated: pod `{pod}` takes {asked}/1000, {free}/1000 are free"
    )]
    GpuOverAllocated {
        /// The node.
        node: String,
        /// The pod.
        pod: String,
        /// The instance.
        gpu: usize,
        /// The amount that the pod takes.
        asked: i64,
        /// The amount that is left.
        free: i64,
    },
    /// The instances are not distinct, not as many as asked, or not on the node.
    #[error("pod `{pod}` asks for {asked} GPU(s) and has instances `{found}` of a node with {gpus}")]
    WrongGpus {
        /// The pod.
        pod: String,
        /// The number of GPUs that the pod asks for.
        asked: usize,
        /// The instances in the file.
        found: String,
        /// The number of GPUs of the node.
        gpus: usize,
    },
    /// The pod does not accept the model of the node.
    #[error("pod `{pod}` accepts `{accepted}` and is placed on node `{node}` of model `{model}`")]
    WrongModel {
        /// The pod.
        pod: String,
        /// The models that the pod accepts.
        accepted: String,
        /// The node.
        node: String,
        /// The model of the node.
        model: String,
    },
    /// A pod was refused although a node could hold it.
    #[error("pod `{pod}` was refused, and node `{node}` could hold it")]
    RefusedThoughFitting {
        /// The pod.
        pod: String,
        /// A node that could hold it.
        node: String,
    },
}

/// A table: column names, and rows with their line numbers.
struct Table {
    file: &'static str,
    columns: Vec<String>,
    rows: Vec<(usize, Vec<String>)>,
}

impl Table {
    fn parse(file: &'static str, text: &str) -> Result<Self, Violation> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let Some((_, header)) = lines.next() else {
            return Err(Violation::Unreadable { file, line: 1, reason: "no header".to_owned() });
        };
        let columns = fields(header);
        Ok(Self { file, columns, rows: lines.map(|(line, text)| (line, fields(text))).collect() })
    }

    fn unreadable(&self, line: usize, reason: String) -> Violation {
        Violation::Unreadable { file: self.file, line, reason }
    }

    fn text<'a>(&self, row: &'a (usize, Vec<String>), column: &str) -> Result<&'a str, Violation> {
        let at = self.columns.iter().position(|name| name == column);
        let cell = at.and_then(|at| row.1.get(at));
        cell.map(String::as_str).ok_or_else(|| self.unreadable(row.0, format!("no column `{column}`")))
    }

    fn number(&self, row: &(usize, Vec<String>), column: &str) -> Result<i64, Violation> {
        let text = self.text(row, column)?;
        let number = text.parse::<i64>().ok().filter(|&number| number >= 0);
        number.ok_or_else(|| self.unreadable(row.0, format!("column `{column}`: `{text}` is no number")))
    }
}

/// Splits a line at commas outside quotes.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.trim_end_matches('\r').chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().expect("one field to begin with").push(c),
        }
    }
    fields.iter().map(|field| field.trim().to_owned()).collect()
}

struct NodeBooks {
    name: String,
    cpu: i64,
    memory: i64,
    /// The free thousandths of each GPU.
    gpus: Vec<i64>,
    model: String,
}

struct PodRow {
    name: String,
    cpu: i64,
    memory: i64,
    gpus: usize,
    /// The thousandths that the pod takes of each of its GPUs.
    part: i64,
    accepted: String,
    times: Option<(i64, i64)>,
    /// The node and instances, if the pod was placed.
    placed: Option<(usize, Vec<usize>)>,
}

impl PodRow {
    fn accepts(&self, model: &str) -> bool {
        self.accepted.is_empty() || (!model.is_empty() && self.accepted.split('|').any(|m| m.trim() == model))
    }

    fn fits(&self, node: &NodeBooks) -> bool {
        let enough = node.gpus.iter().filter(|&&free| free >= self.part).count() >= self.gpus;
        node.cpu >= self.cpu && node.memory >= self.memory && enough && self.accepts(&node.model)
    }
}

/// Checks placements against their trace. All three are given as the text of their files.
///
/// # Errors
/// The first violation.
pub fn verify(
    nodes: &str,
    pods: &str,
    placements: &str,
    options: VerifyOptions,
) -> Result<Verified, Violation> {
    let mut nodes = read_nodes(nodes)?;
    let mut pods = read_pods(pods, options.departures)?;
    read_placements(placements, &nodes, &mut pods)?;
    for (is_arrival, at) in order(&pods) {
        let pod = &pods[at];
        match &pod.placed {
            Some((node, gpus)) if is_arrival => take(&mut nodes[*node], pod, gpus)?,
            Some((node, gpus)) => give(&mut nodes[*node], pod, gpus),
            None if is_arrival && options.refusals == Refusals::AtTheirMoment => refused(&nodes, pod)?,
            None => {}
        }
    }
    if options.refusals == Refusals::AtTheEnd {
        pods.iter().filter(|pod| pod.placed.is_none()).try_for_each(|pod| refused(&nodes, pod))?;
    }
    Ok(summary(&pods, options.departures))
}

fn summary(pods: &[PodRow], departures: bool) -> Verified {
    let count = |matches: &dyn Fn(&PodRow) -> bool| pods.iter().filter(|pod| matches(pod)).count() as u64;
    let held = |amount: &dyn Fn(&PodRow) -> i64| {
        let live = pods.iter().filter(|pod| pod.placed.is_some() && !departures);
        live.map(amount).sum::<i64>().unsigned_abs()
    };
    Verified {
        pods: pods.len() as u64,
        placed: count(&|pod| pod.placed.is_some()),
        constrained: count(&|pod| !pod.accepted.is_empty()),
        constrained_placed: count(&|pod| !pod.accepted.is_empty() && pod.placed.is_some()),
        multi_gpu_placed: count(&|pod| pod.gpus > 1 && pod.placed.is_some()),
        gpu_allocated_milli: held(&|pod| pod.gpus as i64 * pod.part),
        cpu_allocated_milli: held(&|pod| pod.cpu),
    }
}

/// Returns arrivals (true) and departures in the order in which they take effect.
///
/// Without times, pods arrive in file order and never leave. With times they are ordered by time. At the same
/// time, departures of earlier pods come first, then arrivals, then departures of pods that arrived at that
/// time, each in file order.
fn order(pods: &[PodRow]) -> Vec<(bool, usize)> {
    let mut order: Vec<(i64, u8, usize)> = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        let (created, deleted) = pod.times.unwrap_or((0, i64::MAX));
        order.push((created, 1, at));
        if pod.times.is_some() {
            order.push((deleted, if deleted > created { 0 } else { 2 }, at));
        }
    }
    order.sort_unstable();
    order.into_iter().map(|(_, kind, at)| (kind == 1, at)).collect()
}

fn read_nodes(text: &str) -> Result<Vec<NodeBooks>, Violation> {
    let table = Table::parse("nodes", text)?;
    let node = |row| {
        let gpus = usize::try_from(table.number(row, "gpu")?).expect("not negative");
        Ok(NodeBooks {
            name: table.text(row, "sn")?.to_owned(),
            cpu: table.number(row, "cpu_milli")?,
            memory: table.number(row, "memory_mib")?,
            gpus: vec![1000; gpus],
            model: table.text(row, "model").unwrap_or("").to_owned(),
        })
    };
    table.rows.iter().map(node).collect()
}

fn read_pods(text: &str, departures: bool) -> Result<Vec<PodRow>, Violation> {
    let table = Table::parse("pods", text)?;
    let pod = |row| {
        let gpus = usize::try_from(table.number(row, "num_gpu")?).expect("not negative");
        let times = if departures {
            Some((table.number(row, "creation_time")?, table.number(row, "deletion_time")?))
        } else {
            None
        };
        Ok(PodRow {
            name: table.text(row, "name")?.to_owned(),
            cpu: table.number(row, "cpu_milli")?,
            memory: table.number(row, "memory_mib")?,
            gpus,
            part: if gpus == 1 { table.number(row, "gpu_milli")? } else { 1000 },
            accepted: table.text(row, "gpu_spec").unwrap_or("").to_owned(),
            times,
            placed: None,
        })
    };
    table.rows.iter().map(pod).collect()
}

fn read_placements(text: &str, nodes: &[NodeBooks], pods: &mut [PodRow]) -> Result<(), Violation> {
    let table = Table::parse("placements", text)?;
    let by_name: HashMap<&str, usize> = (0..).zip(nodes).map(|(at, n)| (n.name.as_str(), at)).collect();
    for at in 0..pods.len().max(table.rows.len()) {
        let expected = pods.get(at).map_or("", |pod| &pod.name);
        let found = table.rows.get(at).map_or(Ok(""), |row| table.text(row, "pod"))?;
        if expected != found || at >= pods.len() || at >= table.rows.len() {
            let expected = expected.to_owned();
            let found = found.to_owned();
            return Err(Violation::WrongPod { row: at + 1, expected, found });
        }
        let row = &table.rows[at];
        let node = table.text(row, "node")?;
        let indices = table.text(row, "gpu_indices")?;
        let pod = &mut pods[at];
        if node.is_empty() && indices.is_empty() {
            continue;
        }
        if node.is_empty() {
            return Err(Violation::GpusWithoutNode { pod: pod.name.clone() });
        }
        let Some(&node) = by_name.get(node) else {
            return Err(Violation::UnknownNode { pod: pod.name.clone(), node: node.to_owned() });
        };
        let has = nodes[node].gpus.len();
        let parsed = indices.split(';').filter(|text| !text.is_empty()).map(str::parse::<usize>);
        let mut gpus: Vec<usize> = parsed.map(|gpu| gpu.unwrap_or(usize::MAX)).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let listed = indices.split(';').filter(|text| !text.is_empty()).count();
        if gpus.len() != pod.gpus || listed != pod.gpus || gpus.iter().any(|&gpu| gpu >= has) {
            let name = pod.name.clone();
            let found = indices.to_owned();
            return Err(Violation::WrongGpus { pod: name, asked: pod.gpus, found, gpus: has });
        }
        pod.placed = Some((node, gpus));
    }
    Ok(())
}

fn take(node: &mut NodeBooks, pod: &PodRow, gpus: &[usize]) -> Result<(), Violation> {
    if !pod.accepts(&node.model) {
        return Err(Violation::WrongModel {
            pod: pod.name.clone(),
            accepted: pod.accepted.clone(),
            node: node.name.clone(),
            model: node.model.clone(),
        });
    }
    let amounts = [("thousandths of a core", pod.cpu, &mut node.cpu), ("MiB", pod.memory, &mut node.memory)];
    for (resource, asked, free) in amounts {
        if *free < asked {
            let node = node.name.clone();
            let pod = pod.name.clone();
            return Err(Violation::OverAllocated { node, pod, resource, asked, free: *free });
        }
        *free -= asked;
    }
    for &gpu in gpus {
        let free = &mut node.gpus[gpu];
        if *free < pod.part {
            let node = node.name.clone();
            let name = pod.name.clone();
            let asked = pod.part;
            let free = *free;
            return Err(Violation::GpuOverAllocated { node, pod: name, gpu, asked, free });
        }
        *free -= pod.part;
    }
    Ok(())
}

fn give(node: &mut NodeBooks, pod: &PodRow, gpus: &[usize]) {
    node.cpu += pod.cpu;
    node.memory += pod.memory;
    for &gpu in gpus {
        node.gpus[gpu] += pod.part;
    }
}

fn refused(nodes: &[NodeBooks], pod: &PodRow) -> Result<(), Violation> {
    match nodes.iter().find(|node| pod.fits(node)) {
        Some(node) => Err(Violation::RefusedThoughFitting { pod: pod.name.clone(), node: node.name.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str =
        "sn,cpu_milli,memory_mib,gpu,model\na,8000,4096,2,T4\nb,4000,4096,1,P100\nc,2000,1024,0,\n";
    const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n\
        half,1000,1024,1,500,,0,10\npair,1000,1024,2,1000,,10,20\nodd,1000,1024,1,700,P100|V100,0,5\ncpu,1000,1024,0,0,,7,7\n";

    fn check(placements: &str, options: VerifyOptions) -> Result<Verified, Violation> {
        verify(NODES, PODS, &format!("pod,node,gpu_indices\n{placements}"), options)
    }

    #[test]
    fn sound_placements_are_counted() {
        let placements = "half,b,0\npair,a,0;1\nodd,,\ncpu,c,\n";
        let found = check(placements, VerifyOptions::default()).unwrap();
        assert_eq!((found.pods, found.placed, found.constrained, found.constrained_placed), (4, 3, 1, 0));
        assert_eq!(
            (found.multi_gpu_placed, found.gpu_allocated_milli, found.cpu_allocated_milli),
            (1, 2500, 3000)
        );
        let end = VerifyOptions { refusals: Refusals::AtTheEnd, ..VerifyOptions::default() };
        assert_eq!(check(placements, end), Ok(found));
    }

    #[test]
    fn every_corruption_is_found() {
        type V = Violation;
        type Expected = fn(&Violation) -> bool;
        let cases: [(&str, Expected); 12] = [
            ("half,a,0\npair,a,0;1\nodd,b,0\ncpu,c,\n", |v| matches!(v, V::GpuOverAllocated { gpu: 0, .. })),
            ("half,b,0\npair,a,0;1\nodd,b,0\ncpu,c,\n", |v| {
                matches!(v, V::GpuOverAllocated { free: 500, .. })
            }),
            ("half,b,0\npair,a,0;1\nodd,a,0\ncpu,c,\n", |v| matches!(v, V::WrongModel { .. })),
            ("half,b,0\npair,a,0\nodd,,\ncpu,c,\n", |v| matches!(v, V::WrongGpus { asked: 2, .. })),
            ("half,b,0\npair,a,1;1\nodd,,\ncpu,c,\n", |v| matches!(v, V::WrongGpus { .. })),
            ("half,b,1\npair,a,0;1\nodd,,\ncpu,c,\n", |v| matches!(v, V::WrongGpus { gpus: 1, .. })),
            ("half,b,x\npair,a,0;1\nodd,,\ncpu,c,\n", |v| matches!(v, V::WrongGpus { .. })),
            ("half,d,0\npair,a,0;1\nodd,,\ncpu,c,\n", |v| matches!(v, V::UnknownNode { .. })),
            ("half,,0\npair,a,0;1\nodd,,\ncpu,c,\n", |v| matches!(v, V::GpusWithoutNode { .. })),
            ("half,b,0\npair,a,0;1\nodd,,\n", |v| matches!(v, V::WrongPod { row: 4, .. })),
            ("half,b,0\nodd,,\npair,a,0;1\ncpu,c,\n", |v| matches!(v, V::WrongPod { row: 2, .. })),
            ("half,b,0\npair,a,0;1\nodd,,\ncpu,c,\ncpu,c,\n", |v| matches!(v, V::WrongPod { row: 5, .. })),
        ];
        for (placements, expected) in cases {
            let violation = check(placements, VerifyOptions::default()).unwrap_err();
            assert!(expected(&violation), "{placements} gave {violation}");
        }
    }

    #[test]
    fn over_allocated_cpu_and_memory_are_found() {
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,1500,100,0,0\ny,600,100,0,0\n";
        let placements = "pod,node,gpu_indices\nx,c,\ny,c,\n";
        let found = verify(NODES, pods, placements, VerifyOptions::default());
        assert!(matches!(found, Err(Violation::OverAllocated { asked: 600, free: 500, .. })), "{found:?}");
        let pods = pods.replace(",100,", ",600,").replace("1500", "15");
        let found = verify(NODES, &pods, placements, VerifyOptions::default());
        assert!(matches!(found, Err(Violation::OverAllocated { resource: "MiB", .. })), "{found:?}");
    }

    #[test]
    fn needless_refusals_are_found() {
        let refused = |refusals, placements| check(placements, VerifyOptions { refusals, departures: false });
        let lazy = "half,,\npair,a,0;1\nodd,b,0\ncpu,c,\n";
        let found = refused(Refusals::AtTheirMoment, lazy);
        assert!(matches!(found, Err(Violation::RefusedThoughFitting { .. })), "{found:?}");
        // At the end no node has room for it, so only the stricter check detects this.
        assert!(refused(Refusals::AtTheEnd, lazy).is_ok());
        let lazy = "half,b,0\npair,a,0;1\nodd,,\ncpu,,\n";
        assert!(refused(Refusals::AtTheEnd, lazy).is_err() && refused(Refusals::Accepted, lazy).is_ok());
    }

    #[test]
    fn departures_make_room_at_their_time() {
        let leaving = VerifyOptions { departures: true, ..VerifyOptions::default() };
        // `half` leaves at 10, before `pair` arrives at 10. `odd` has also left.
        let placements = "half,a,0\npair,a,0;1\nodd,b,0\ncpu,a,\n";
        assert!(check(placements, leaving).is_ok());
        assert!(check(placements, VerifyOptions::default()).is_err());
    }
}
