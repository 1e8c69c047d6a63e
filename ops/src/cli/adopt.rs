//! `wharf adopt`.

use clap::Args;
use wharf_net::protocol::{AdoptRequest, NamedUnits};

use super::connect::{ConnectArgs, Usage};
use super::demand::DemandArgs;
use super::{Ended, print};

#[derive(Debug, Args)]
pub(super) struct AdoptArgs {
    /// The node of the allocation, by name.
    node: String,
    #[command(flatten)]
    demand: DemandArgs,
    /// The GPU instances of the allocation, such as 0,3; chosen by the service if not given.
    #[arg(long = "gpu-instances", value_delimiter = ',')]
    gpus: Vec<u8>,
    /// The units of a unit-instance resource, NAME=ID,ID; chosen by the service if not given.
    #[arg(long = "units", value_name = "NAME=IDS", value_parser = units)]
    units: Vec<NamedUnits>,
    /// The name of the allocation in the system that made it. Adopting the same name again on the node
    /// records nothing new.
    #[arg(long, default_value = "")]
    external_id: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn units(text: &str) -> Result<NamedUnits, Usage> {
    let wrong = || Usage("give NAME=ID,ID, such as npu=0,2".to_owned());
    let (name, ids) = text.split_once('=').ok_or_else(wrong)?;
    let instances =
        ids.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>().map_err(|_| wrong())?;
    Ok(NamedUnits { name: name.to_owned(), instances, part: 0 })
}

pub(super) async fn adopt(args: AdoptArgs) -> anyhow::Result<Ended> {
    let request = AdoptRequest {
        node: args.node,
        demand: args.demand.body(),
        gpus: args.gpus,
        units: args.units,
        external_id: args.external_id,
        tenant: 0,
    };
    let reply = args.connect.ask(async |client| client.adopt(&request).await).await?;
    let is_done = reply.reason.is_done();
    args.connect.show(is_done, || print::place_view(&reply), || print::place("adopted", &reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_by_name_and_id() {
        let read = units("npu=0,2").unwrap();
        assert_eq!((read.name.as_str(), &read.instances[..]), ("npu", &[0, 2][..]));
        for broken in ["npu", "npu=", "npu=x", "npu=256"] {
            assert!(units(broken).is_err(), "{broken}");
        }
    }
}
