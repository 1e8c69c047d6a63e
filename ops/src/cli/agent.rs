//! `wharf agent`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::resource::Amount;
use wharf_net::protocol::{Pair, ReportReply, ReportRequest};

use super::Ended;
use super::connect::{ConnectArgs, Usage};
use super::node::label;
use super::place::Interruption;
use super::print::{self, units};
use crate::agent::{
    Accelerators, Agent, Fake, Inventory, Journal, Machine, NvmlInventory, Shape, watch_accelerators,
};
use crate::units::memory;

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    /// The node's name [default: the machine's host name].
    #[arg(long)]
    name: Option<String>,
    /// The identity of the machine [default: its machine id].
    #[arg(long)]
    identity: Option<String>,
    /// A label, KEY=VALUE; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<Pair>,
    /// Cores to report [default: those that this process may use].
    #[arg(long)]
    cpu: Option<Amount>,
    /// Memory to report [default: the machine's, or the limit of its control group].
    #[arg(long, value_parser = memory)]
    memory: Option<Amount>,
    /// Cores to keep for the system.
    #[arg(long, default_value = "0")]
    reserve_cpu: Amount,
    /// Memory to keep for the system.
    #[arg(long, value_parser = memory, default_value = "0")]
    reserve_memory: Amount,
    /// Milliseconds between heartbeats, if shorter than the service's interval.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    interval: Option<u64>,
    /// JSON file of accelerators to report instead of the machine's, for tests and trials.
    #[arg(long, value_name = "FILE")]
    fake_inventory: Option<PathBuf>,
    /// Report once, print the report, and exit.
    #[arg(long)]
    once: bool,
    /// Print the report without contacting a service, and exit.
    #[arg(long, conflicts_with = "once")]
    print: bool,
    /// Drain the node when the agent is stopped.
    #[arg(long)]
    drain_on_exit: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A report, for output.
struct Report<'a> {
    request: &'a ReportRequest,
    found: &'a Accelerators,
    /// The id of the node, once it is registered.
    node: Option<u64>,
}

impl Report<'_> {
    fn view(&self) -> Value {
        let node = &self.request.node;
        json!({
            "name": node.name,
            "identity": node.identity,
            "boot": self.request.boot,
            "node": self.node,
            "cpu": units(node.cpu),
            "memory": units(node.memory),
            "gpus": node.gpus,
            "custom": print::amounts(&node.custom),
            "labels": print::labels(&node.labels),
            "source": self.found.source,
            "devices": self.found.gpus,
        })
    }

    fn say(&self) {
        let node = &self.request.node;
        let id = self.node.map(|id| format!(", registered as n{id}")).unwrap_or_default();
        print::say(format_args!("{} (machine {}){id}", node.name, node.identity));
        let cpu = units(node.cpu);
        let memory = units(node.memory);
        print::say(format_args!("  {cpu} cores, {memory} MiB, {} GPUs: {}", node.gpus, self.found.source));
        for (name, amount) in print::amounts(&node.custom) {
            print::say(format_args!("  {amount} {name}"));
        }
        for (key, value) in print::labels(&node.labels) {
            print::say(format_args!("  label {key}={value}"));
        }
        for gpu in &self.found.gpus {
            let numa = gpu.numa.map(|numa| format!(", NUMA node {numa}")).unwrap_or_default();
            let mig = gpu.mig.as_ref().map(|mig| format!(", MIG: {}", mig.join(" "))).unwrap_or_default();
            let links = if gpu.links.is_empty() {
                String::new()
            } else {
                format!(", linked to {}", gpu.links.join(" "))
            };
            let fault = gpu.fault.as_ref().map(|fault| format!(", unhealthy: {fault}")).unwrap_or_default();
            print::say(format_args!(
                "  {} {}, {} MiB{numa}{mig}{links}{fault}",
                gpu.uuid, gpu.model, gpu.memory_mib
            ));
        }
    }

    fn show(&self, connect: &ConnectArgs) -> anyhow::Result<Ended> {
        connect.show(true, || self.view(), || self.say())
    }
}

/// Prints to standard error. A closed standard error does not stop the agent.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "wharf agent: {text}");
}

/// Prints each event once.
struct Notes;

impl Journal for Notes {
    fn reported(&mut self, request: &ReportRequest, reply: &ReportReply) {
        let faults = request.gpus.iter().filter(|gpu| !gpu.fault.is_empty());
        let faults: Vec<String> = faults.map(|gpu| format!(", {}: {}", gpu.uuid, gpu.fault)).collect();
        note(&format!("reported {} as n{}{}", request.node.name, reply.node, faults.concat()));
        if reply.replaced != 0 {
            note(&format!(
                "n{} of another machine had this name: it is gone, and {} allocations with it",
                reply.replaced, reply.allocations_ended
            ));
        }
    }

    fn failed(&mut self, error: &anyhow::Error, pause: Duration) {
        note(&format!("{}; trying again in {} ms", super::message(error), pause.as_millis()));
    }
}

fn shape(args: &AgentArgs) -> Result<Shape, Usage> {
    let machine = Machine::read();
    let mut labels = BTreeMap::new();
    for Pair { key, value } in &args.labels {
        if labels.insert(key.clone(), value.clone()).is_some() {
            return Err(Usage(format!("--label {key}={value}: give each key once")));
        }
    }
    let given = |given: &Option<String>, found: String, flag: &str, what: &str| match given {
        Some(given) => Ok(given.clone()),
        None if found.is_empty() => Err(Usage(format!("this machine has no {what}: give {flag}"))),
        None => Ok(found),
    };
    let less = |all: Amount, kept: Amount, flag: &str| {
        let left = (kept <= all).then(|| all.minus(kept));
        left.ok_or_else(|| Usage(format!("{flag} {kept}: the machine has only {all}: keep less")))
    };
    let memory_mib = u32::try_from(machine.memory_mib).unwrap_or(u32::MAX);
    let cpu = args.cpu.unwrap_or_else(|| Amount::whole(machine.cpus));
    let memory = args.memory.unwrap_or_else(|| Amount::whole(memory_mib));
    Ok(Shape {
        name: given(&args.name, machine.host, "--name", "host name")?,
        identity: given(&args.identity, machine.identity, "--identity", "machine id (/etc/machine-id)")?,
        boot: machine.boot,
        cpu: less(cpu, args.reserve_cpu, "--reserve-cpu")?,
        memory: less(memory, args.reserve_memory, "--reserve-memory")?,
        numa_nodes: machine.numa_nodes,
        labels,
    })
}

pub(super) async fn run(args: AgentArgs) -> anyhow::Result<Ended> {
    let shape = shape(&args)?;
    let mut inventory: Box<dyn Inventory> = match &args.fake_inventory {
        Some(path) => Box::new(Fake { path: path.clone() }),
        None => Box::<NvmlInventory>::default(),
    };
    if args.print {
        let found = inventory.read()?;
        let request = crate::agent::report(&shape, &found, 0);
        return Report { request: &request, found: &found, node: None }.show(&args.connect);
    }
    // Before anything slow, so that a signal during startup is not lost. A single report ends by the signal itself.
    let interruption = if args.once { None } else { Some(Interruption::of_service()?) };
    let interval = args.interval.map(Duration::from_millis);
    let failed = |error: &anyhow::Error| note(&format!("accelerators: {}", super::message(error)));
    let accelerators = watch_accelerators(inventory, interval, failed)?;
    let found = accelerators.borrow().clone();
    if found.whole().count() > GPU_INSTANCES_MAX {
        note(&format!("more than {GPU_INSTANCES_MAX} GPUs: only the first {GPU_INSTANCES_MAX} are reported"));
    }
    let mut agent = Agent {
        shape,
        accelerators,
        interval,
        drain_on_exit: args.drain_on_exit,
        journal: Notes,
        version: 0,
    };
    let Some(mut interruption) = interruption else {
        let reply = args.connect.ask(async |client| agent.report_once(client).await).await?;
        let request = crate::agent::report(&agent.shape, &found, agent.version);
        return Report { request: &request, found: &found, node: Some(reply.node) }.show(&args.connect);
    };
    agent.run(|| args.connect.connect(), interruption.told()).await;
    Ok(Ended::Done)
}
