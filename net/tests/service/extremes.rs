//! Numbers at the ends of their ranges, in every numeric field of every request. Each request is answered or
//! refused, and the books hold. The tests here expect only that the service continues. `refusals.rs` tests
//! which values are refused.

use crate::harness::{TestServer, audit, within};
use wharf_core::limits::AMOUNT_MAX;
use wharf_core::rng::Rng;
use wharf_net::protocol::{
    AdoptRequest, DemandBody, DrainRequest, GpuBody, HeartbeatRequest, MODE_WAIT_UNTIL, Name, NamedAmount,
    NamedUnits, NodeBody, NodeBooksRequest, NodesRequest, PlaceRequest, RemoveRequest, ReportRequest,
    ReserveRequest, SetResourcesRequest, kinds,
};

/// The number of runs, each with its own server.
const SEEDS: u64 = 4;

struct Draw(Rng);

impl Draw {
    fn below(&mut self, count: u64) -> u64 {
        self.0.below(count)
    }

    /// Draws an amount, mostly from the ends of the valid range.
    fn amount(&mut self) -> i64 {
        let of = [0, 0, 1, 9_999, 10_000, 20_000, 160_000, AMOUNT_MAX / 3, AMOUNT_MAX - 1, AMOUNT_MAX];
        match self.below(24) {
            0 => i64::MAX,
            1 => i64::MIN,
            2 => -1,
            3 => AMOUNT_MAX + 1,
            _ => of[self.below(of.len() as u64) as usize],
        }
    }

    fn gpu(&mut self) -> i64 {
        [0, 0, 1, 5_000, 9_999, 10_000, 160_000, i64::MAX][self.below(8) as usize]
    }

    fn word(&mut self) -> u64 {
        [0, 1, 2, 3, u64::from(u32::MAX), i64::MAX as u64, u64::MAX - 1, u64::MAX][self.below(8) as usize]
    }

    fn byte(&mut self) -> u8 {
        [0, 1, 2, 15, 16, 63, 64, 255][self.below(8) as usize]
    }

    fn node(&mut self) -> String {
        format!("n{}", self.below(6))
    }

    fn custom(&mut self) -> Vec<NamedAmount> {
        let named = |draw: &mut Self, name: &str| NamedAmount {
            name: name.to_owned(),
            amount: if name == "npu" { draw.gpu().min(640_000) } else { draw.amount() },
        };
        ["nic", "npu"]
            .into_iter()
            .filter(|_| self.below(3) == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|name| named(self, name))
            .collect()
    }

    fn body(&mut self) -> NodeBody {
        let gpus = [0, 1, 8, 16, 17, u32::MAX][self.below(6) as usize];
        let name = self.node();
        let cpu = self.amount();
        let memory = self.amount();
        let custom = self.custom();
        NodeBody { name, cpu, memory, gpus, custom, ..NodeBody::default() }
    }

    fn place(&mut self) -> PlaceRequest {
        let mut request = PlaceRequest {
            demand: DemandBody {
                cpu: self.amount(),
                memory: if self.below(2) == 0 { 0 } else { self.amount() },
                gpu: self.gpu(),
                custom: if self.below(2) == 0 { Vec::new() } else { self.custom() },
            },
            policy: self.below(11) as u8,
            attribute_order: [0, 1, 255, 254][self.below(4) as usize],
            priority: 0,
            candidates: if self.below(6) == 0 { vec![self.word(), self.word()] } else { Vec::new() },
            explain: self.below(2) as u8,
            ..PlaceRequest::default()
        };
        if self.below(6) == 0 {
            request.preferred_nodes = vec![self.word()];
        }
        request.owner = if self.below(2) == 0 { self.word() } else { 0 };
        request
    }

    fn report(&mut self) -> ReportRequest {
        let mut node = self.body();
        node.name = format!("agent{}", self.below(2));
        node.identity.clone_from(&node.name);
        let count = node.gpus.min(16);
        let mut gpu = |i| GpuBody {
            uuid: format!("{i}"),
            memory_mib: self.word(),
            numa: Some(u16::MAX),
            links: [0, 1, u16::MAX >> 1, u16::MAX][self.below(4) as usize],
            ..GpuBody::default()
        };
        let gpus = (0..count).map(&mut gpu).collect();
        ReportRequest { node, boot: "b".to_owned(), version: self.word(), gpus }
    }
}

async fn ask(client: &wharf_net::client::Client, draw: &mut Draw) {
    match draw.below(16) {
        0 => drop(within(client.add_nodes(&NodesRequest { nodes: vec![draw.body(), draw.body()] })).await),
        1 => drop(within(client.update_nodes(&NodesRequest { nodes: vec![draw.body()] })).await),
        2 => {
            let custom = draw.custom().into_iter();
            let cpu = NamedAmount { name: "cpu".to_owned(), amount: draw.amount() };
            let gpu = NamedAmount { name: "gpu".to_owned(), amount: draw.gpu() };
            let resources = custom.chain([cpu, gpu]).collect();
            let request = SetResourcesRequest { node: draw.node(), resources };
            drop(within(client.set_resources(&request)).await);
        }
        3 => {
            let units = NamedUnits { name: "npu".to_owned(), instances: vec![draw.byte()], part: 0 };
            let request = AdoptRequest {
                node: draw.node(),
                demand: DemandBody {
                    cpu: draw.amount(),
                    memory: draw.amount(),
                    gpu: draw.gpu(),
                    custom: draw.custom(),
                },
                gpus: if draw.below(2) == 0 { vec![draw.byte()] } else { Vec::new() },
                units: if draw.below(3) == 0 { vec![units] } else { Vec::new() },
                ..AdoptRequest::default()
            };
            drop(within(client.adopt(&request)).await);
        }
        4 | 5 => {
            let node = draw.node();
            let owner = draw.word();
            let lasts = draw.word();
            let cpu = draw.amount();
            let memory = draw.amount();
            let gpu = draw.gpu();
            let request = ReserveRequest {
                node,
                owner,
                demand: DemandBody { cpu, memory, gpu, custom: draw.custom() },
                lasts,
            };
            drop(within(client.reserve(&request)).await);
        }
        6 => drop(within(client.report(&draw.report())).await),
        7 => {
            let request = HeartbeatRequest { node: draw.word(), version: draw.word() };
            drop(within(client.heartbeat(&request)).await);
        }
        8 => {
            let mut waiting = draw.place();
            waiting.mode = MODE_WAIT_UNTIL;
            waiting.deadline = draw.word();
            waiting.priority = [i32::MIN, 0, i32::MAX][draw.below(3) as usize];
            let (sequence, reply) = client.call_waiting::<kinds::Place>(&waiting).await.expect("it is sent");
            let _ = within(client.cancel_wait(sequence)).await.expect("answered");
            let _ = within(reply).await.expect("answered");
        }
        9 => drop(within(client.node_books(&NodeBooksRequest { node: draw.node() })).await),
        10 if draw.below(3) == 0 => {
            let request = RemoveRequest { names: vec![Name(draw.node())], force: true };
            drop(within(client.remove_nodes(&request)).await);
        }
        11 => {
            let request = DrainRequest { names: vec![Name(draw.node())], undo: draw.below(3) > 0 };
            drop(within(client.drain_nodes(&request)).await);
        }
        _ => drop(within(client.place(&draw.place())).await),
    }
}

#[tokio::test]
async fn numbers_at_the_ends_of_their_ranges_stop_nothing() {
    for (seed, shards) in (1..=SEEDS).map(|seed| (seed, 1 + (seed % 2) as u16)) {
        let server = TestServer::start(shards);
        let client = server.client().await;
        let mut draw = Draw(Rng::new(seed));
        for round in 0..3000 {
            ask(&client, &mut draw).await;
            if round % 50 == 0 {
                assert!(audit(&client).await.books_hash.is_some(), "every invariant holds");
            }
        }
        let placed: u64 = audit(&client).await.shards.iter().map(|shard| shard.placed).sum();
        assert!(placed > 50, "what is not met is not tested: {placed} placed");
        within(client.close()).await;
        server.stop().await;
    }
}
