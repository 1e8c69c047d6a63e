//! The store on disk. Reading returns what was written, a checkpoint is valid for one start, and damage is an
//! error with its remedy, never a panic in the engine.

use std::sync::Arc;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::group::{BundlePlace, GroupSpec, Spreading, Strategy, TopologyRule};
use wharf_core::ids::{
    AllocationId, BundleId, GroupId, NodeId, Ordinal, OwnerId, PartitionId, ResourceId, SessionId, TenantId,
};
use wharf_core::index::PolicyState;
use wharf_core::node::{
    AgentFacts, GpuDevice, Labels, NodeRegistration, NodeSpec, NodeState, Operator, Selector, Taint,
    TaintEffect, Taints, Term, Toleration, TolerationOperator,
};
use wharf_core::request::{Explain, OrderChoice, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest, ReservedAmounts, ResourceKind};
use wharf_core::rng::Rng;
use wharf_core::state::{
    AllocationRecord, BundleRecord, ClaimRecord, GranularityState, GroupBundleRecord, GroupRecord,
    InsideRecord, LeaseRecord, NodeRecord, ReleasingRecord, RemovedNode, ReservationRecord,
};
use wharf_core::statement::ConflictDetection;

use super::*;
use crate::journal::checkpoint::{HASH, add_numbers};
use crate::journal::numbers::seal;
use wharf_core::hash::{StateHasher, stable_hash};

const PARTITIONS: u16 = 4;

fn node(id: u64, partition: u16, change: impl FnOnce(&mut NodeRecord)) -> NodeRecord {
    let spec = NodeSpec {
        name: format!("node-{id}").into(),
        identity: None,
        cpu: "64".parse().unwrap(),
        memory: Amount::whole(1 << 18),
        gpus: 0,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    };
    let registration = NodeRegistration {
        id: NodeId(id),
        ordinal: Ordinal(id),
        partition: PartitionId(partition),
        spec,
        agent: None,
    };
    let mut node =
        NodeRecord { registration, state: NodeState::Ready, version: 7 * id, unhealthy: Vec::new() };
    change(&mut node);
    node
}

/// Returns an id of partition 1.
fn id_in_1(sequence: u64) -> AllocationId {
    let incarnation = Incarnation(1);
    let partition = PartitionId(1);
    AllocationId { incarnation, partition, sequence, tenant: TenantId::OPERATOR }
}

fn allocation(
    partition: u16,
    sequence: u64,
    node: u64,
    change: impl FnOnce(&mut AllocationRecord),
) -> AllocationRecord {
    let id = AllocationId { partition: PartitionId(partition), ..id_in_1(sequence) };
    let demand = Demand { cpu: "0.25".parse().unwrap(), ..Demand::default() };
    let gpus = GpuAssignment::NONE;
    let mut allocation =
        AllocationRecord { id, node: NodeId(node), demand, gpus, units: None, external_id: None };
    change(&mut allocation);
    allocation
}

/// Returns a state with every kind of content: custom resources, labels, an identity, a drained node, whole
/// and partial GPUs, and more in use than the node has (as after a reduction of its capacity).
fn rich() -> StoreState {
    let mut state = StoreState::create(PARTITIONS);
    state.incarnation = Incarnation(1);
    state.now = Time(123_456_789);
    state.registrar.next_node = 9;
    state.registrar.removed = [4u64, 1]
        .map(|id| RemovedNode {
            name: format!("gone-{id}").into(),
            identity: "machine".into(),
            id: NodeId(id),
            ordinal: Ordinal(id),
            version: 10 * id,
        })
        .to_vec();
    state.registrar.resources = vec!["licence".to_owned(), "rail".to_owned()];
    let custom = |units: &[(u16, u32)]| {
        Demand::canonical_custom(
            units.iter().map(|&(id, whole)| (ResourceId(id), Amount::whole(whole))).collect(),
        )
        .unwrap()
    };
    let full = node(3, 1, |node| {
        let spec = &mut node.registration.spec;
        spec.identity = Some("machine-3".into());
        spec.gpus = 2;
        spec.custom = custom(&[(0, 5), (1, 1)]);
        let taint = |effect| Taint { key: "team".into(), value: "ml".into(), effect };
        let effects = [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule, TaintEffect::NoExecute];
        spec.taints = Taints::new(effects.map(taint).to_vec()).unwrap();
        spec.labels =
            Labels::new(vec![("gpu-model".into(), "T4".into()), ("zone".into(), "a".into())]).unwrap();
    });
    let drained = node(5, 1, |node| node.state = NodeState::Draining);
    let lost = node(6, 1, |node| {
        node.state = NodeState::Lost { draining: true };
        node.registration.spec.gpus = 2;
        let gpu = |uuid: &str, numa| GpuDevice {
            uuid: uuid.into(),
            model: "T4".into(),
            memory_mib: 16_384,
            numa,
            links: 0b10,
        };
        let facts = AgentFacts { boot: "boot".into(), gpus: vec![gpu("a", None), gpu("b", Some(1))] };
        node.registration.agent = Some(facts.into());
        node.unhealthy = vec![(1, "Xid 79".into())];
    });
    let short = node(8, 3, |node| {
        node.registration.spec.cpu = "0.1".parse().unwrap();
        node.registration.spec.gpus = 1;
    });
    state.partitions[1].nodes = vec![full, drained, lost];
    state.partitions[3].nodes = vec![short];
    let fraction = |mask: u16, part: u16| {
        move |allocation: &mut AllocationRecord| {
            allocation.demand.gpu = GpuRequest::Fraction(part);
            allocation.gpus = GpuAssignment { mask, part };
        }
    };
    state.partitions[1].allocations = vec![
        allocation(1, 1, 3, fraction(0b01, 2500)),
        allocation(1, 2, 3, fraction(0b01, 7500)),
        allocation(1, 3, 3, |allocation| {
            allocation.demand.gpu = GpuRequest::Whole(1);
            allocation.gpus = GpuAssignment { mask: 0b10, part: 10_000 };
            allocation.demand.custom = custom(&[(0, 5)]);
        }),
        allocation(1, 1 << 40, 5, |_| ()),
    ];
    // Node 8 has only one GPU left; what runs on its second GPU stays there.
    state.partitions[3].allocations =
        vec![allocation(3, 1, 8, |_| ()), allocation(3, 2, 8, fraction(0b10, 1))];
    // More than is free.
    let left = ReservedAmounts {
        cpu: "64".parse().unwrap(),
        gpu: "1.5".parse().unwrap(),
        custom: vec![(ResourceId(1), Amount::whole(1))],
        ..ReservedAmounts::default()
    };
    let owner = OwnerId::new(7).unwrap();
    let until = Some(Time(1 << 40));
    state.partitions[1].reservations = vec![
        ReservationRecord { node: NodeId(3), owner, left: left.clone(), until },
        ReservationRecord { node: NodeId(5), owner, left, until: None },
    ];
    let bundle = |index| BundleId {
        group: GroupId { incarnation: Incarnation(1), number: 5, tenant: TenantId::OPERATOR },
        index,
    };
    // The claim with the higher id is served first.
    state.partitions[1].claims = [(6, Some(bundle(0))), (5, None)]
        .map(|(sequence, bundle)| {
            let node = NodeId(5);
            let gpus = GpuAssignment::NONE;
            let units = None;
            let demand = Demand { cpu: "0.125".parse().unwrap(), ..Demand::default() };
            ClaimRecord { id: id_in_1(sequence), node, demand, gpus, units, bundle }
        })
        .to_vec();
    state.partitions[1].releasing =
        vec![ReleasingRecord { allocation: id_in_1(1 << 40), until: Time(1 << 50) }];
    state.partitions[1].bundles = vec![BundleRecord { allocation: id_in_1(3), bundle: bundle(1) }];
    let demand = Demand { gpu: GpuRequest::Fraction(2500), ..Demand::default() };
    let gpus = GpuAssignment { mask: 0b10, part: 2500 };
    let units = None;
    state.partitions[1].inside =
        vec![InsideRecord { id: id_in_1(7), bundle: id_in_1(3), demand, gpus, units }];
    let session = SessionId { incarnation: Incarnation(1), number: 1 << 33 };
    state.partitions[1].leases = vec![
        LeaseRecord { allocation: id_in_1(1), session: None, until: Time(1 << 41) },
        LeaseRecord { allocation: id_in_1(2), session: Some(session), until: Time(1 << 42) },
    ];
    state.policies = vec![
        PolicyState { next_fit: Ordinal(3), rng: Rng::new(99) },
        PolicyState { next_fit: Ordinal(0), rng: Rng::new(u64::MAX) },
    ];
    state.groups = vec![group()];
    state.jobs = crate::journal::job_row::tests::record(ResourceKind::Custom(ResourceId(0)));
    let thetas = vec![2500, 81_920_000, 1, 100];
    state.granularities = vec![None, Some(GranularityState { thetas, changes: 7 })];
    state
}

/// Returns a group that uses every option.
fn group() -> GroupRecord {
    let term = |operator, values: &[&str]| Term {
        key: "zone".to_owned(),
        operator,
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    let selector = |operator, values: &[&str]| Arc::new(Selector::new(vec![term(operator, values)]));
    let toleration = |effect, operator| Toleration {
        key: "team".to_owned(),
        operator,
        value: if operator == TolerationOperator::Equal { "ml".to_owned() } else { String::new() },
        effect,
    };
    let tolerations = vec![
        toleration(None, TolerationOperator::Exists),
        toleration(Some(TaintEffect::NoExecute), TolerationOperator::Equal),
    ];
    let rules = RankRules::new(
        vec![selector(Operator::NotIn, &["a", "b"]), selector(Operator::Exists, &[])],
        vec![(7, selector(Operator::Greater, &["3"]))],
        tolerations,
    );
    let demand = Demand { cpu: Amount::whole(2), gpu: GpuRequest::Fraction(2500), ..Demand::default() };
    let plain = Arc::new(PlacementRequest::new(demand.clone(), Policy::Spread));
    // Only requests without GPUs avoid nodes with GPUs.
    let custom = Demand::canonical_custom(vec![(ResourceId(1), Amount::whole(1))]).unwrap();
    let without_gpu = Demand { gpu: GpuRequest::None, custom, ..demand };
    let rich = Arc::new(PlacementRequest {
        order: OrderChoice::Configured(3),
        explain: Explain::Full,
        selector: Some(selector(Operator::In, &["a"])),
        candidates: Some(vec![NodeId(3), NodeId(5)].into()),
        preferences: Some(Arc::new(Preferences {
            rules: Some(Arc::new(rules.unwrap())),
            nodes: vec![NodeId(5)].into(),
            avoid_gpu: true,
            affinity: true,
        })),
        owner: OwnerId::new(7),
        ..PlacementRequest::new(without_gpu, Policy::BestFit)
    });
    let id = GroupId { incarnation: Incarnation(1), number: 5, tenant: TenantId::OPERATOR };
    let next_index = 4;
    let bundle = |index, request: &Arc<PlacementRequest>, place, lost| GroupBundleRecord {
        index,
        request: Arc::clone(request),
        place,
        lost,
    };
    let gpus = GpuAssignment { mask: 1, part: 2500 };
    let bundles = vec![
        bundle(0, &plain, Some(BundlePlace { node: NodeId(3), allocation: id_in_1(1), gpus }), None),
        bundle(2, &rich, None, Some(id_in_1(9))),
        bundle(3, &plain, None, None),
    ];
    let spec = GroupSpec {
        topology: Some(TopologyRule { key: "zone".into(), spreading: Spreading::Spread { max_skew: 2 } }),
        min_members: 1,
        priority: -3,
        conflict_detection: ConflictDetection::Coarse,
        ..GroupSpec::new(vec![plain, rich], Strategy::StrictSpread)
    };
    GroupRecord { id, spec: Arc::new(spec), bundles, next_index }
}

fn open(directory: &tempfile::TempDir) -> Result<(Store, StoreState), FileError> {
    Store::open(directory.path(), PARTITIONS, Durability::Memory)
}

/// Begins a run without a journal.
fn begin(store: &mut Store, incarnation: u32) {
    let begun = store.begin(Incarnation(incarnation), &StoreState::create(PARTITIONS)).unwrap();
    assert!(begun.is_none());
}

/// Returns a directory whose store was stopped with `state`.
fn stopped_with(state: &StoreState) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = open(&directory).unwrap();
    begin(&mut store, 1);
    store.checkpoint(state, None).unwrap();
    directory
}

#[test]
fn what_is_written_is_read() {
    let directory = stopped_with(&rich());
    let (mut store, state) = open(&directory).unwrap();
    assert_eq!(state, rich());
    // Overwrites an existing checkpoint.
    begin(&mut store, 2);
    let mut less = StoreState { incarnation: Incarnation(2), ..rich() };
    less.partitions[3].allocations.clear();
    less.policies.pop();
    less.granularities.pop();
    store.checkpoint(&less, None).unwrap();
    drop(store);
    assert_eq!(open(&directory).unwrap().1, less);
}

#[test]
fn a_group_that_is_longer_than_any_frame_is_read() {
    let mut state = rich();
    let group = state.groups.last_mut().unwrap();
    let values: Vec<String> = (0..32).map(|at| format!("{at:0250}")).collect();
    let term = |key: u32| Term { key: key.to_string(), operator: Operator::In, values: values.clone() };
    let plain = Arc::clone(&group.bundles[0].request);
    let bundle = |index: u32| {
        let selector = Some(Arc::new(Selector::new((index..index + 32).map(term).collect())));
        let request = Arc::new(PlacementRequest { selector, ..(*plain).clone() });
        GroupBundleRecord { index, request, place: None, lost: None }
    };
    group.bundles = (0..40).map(bundle).collect();
    group.next_index = 40;
    let directory = stopped_with(&state);
    assert!(rows_of(&directory).0.iter().any(|row| row.len() > 9 << 20));
    assert_eq!(open(&directory).unwrap().1, state);
}

#[test]
fn the_engine_takes_what_was_read() {
    for shards in [1, 4] {
        let (_store, state) = open(&stopped_with(&rich())).unwrap();
        let waker = std::task::Waker::noop().clone();
        let engine =
            Engine::open(state, &EngineConfig { shards, ..EngineConfig::default() }, vec![waker]).unwrap();
        assert_eq!((engine.incarnation, engine.registrar.node_count()), (Incarnation(2), 4));
    }
}

#[test]
fn a_start_that_never_began_costs_nothing_and_one_that_crashed_leaves_empty_books() {
    let directory = stopped_with(&rich());
    // A start that opened the store but could not serve.
    drop(open(&directory).unwrap());
    let (mut store, state) = open(&directory).unwrap();
    assert_eq!(state, rich());
    let id = store.id();
    begin(&mut store, 2);
    drop(store);
    // That run crashed.
    let (mut store, state) = open(&directory).unwrap();
    assert_eq!((store.id(), state.incarnation), (id, Incarnation(2)));
    assert!(state.partitions.iter().all(|p| p.nodes.is_empty() && p.allocations.is_empty()));
    assert!(state.registrar.next_node > 1 << 40, "{}", state.registrar.next_node);
    let leapt = state.registrar.next_node;
    // The next run crashed too, after registering nodes in its range.
    begin(&mut store, 3);
    drop(store);
    let (_store, state) = open(&directory).unwrap();
    assert!(state.registrar.next_node >= leapt + (1 << 40));
}

/// Would catch a start after a crash that takes nothing back because no append came after the last checkpoint. The
/// checkpoint after a clean stop has everything as it is.
#[test]
fn what_only_a_checkpoint_shows_is_taken_back_after_a_crash_and_not_after_a_stop() {
    let mut state = rich();
    state.groups.clear();
    let directory = stopped_with(&state);
    let open = || {
        let (store, read) = Store::open(directory.path(), PARTITIONS, Durability::Os).unwrap();
        let bundles = read.partitions.iter().map(|partition| partition.bundles.len());
        (store, bundles.sum::<usize>())
    };
    let (mut store, before) = open();
    assert!(before > 0);
    store.begin(Incarnation(2), &state).unwrap().unwrap();
    let mut checkpoint = store.begin_checkpoint(1).unwrap();
    checkpoint.state(&state).unwrap();
    checkpoint.finish(&state, 0).unwrap();
    drop(store);
    let (store, crashed) = open();
    assert_eq!(crashed, 0, "no group is recorded");
    store.checkpoint(&state, Some(0)).unwrap();
    drop(store);
    assert_eq!(open().1, before);
}

#[test]
fn a_second_service_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _first = open(&directory).unwrap();
    let second = open(&directory).map(drop).unwrap_err();
    assert!(second.to_string().contains("another service uses this data directory"), "{second}");
}

#[test]
fn a_file_that_is_no_store_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(FILE), b"not a database").unwrap();
    let error = open(&directory).map(drop).unwrap_err();
    assert!(error.to_string().contains(FILE), "{error}");
}

/// Returns what the last stop wrote into a directory: the rows, and their hash.
fn rows_of(directory: &tempfile::TempDir) -> (Vec<Vec<u8>>, u128) {
    let database = Database::open(directory.path().join(FILE)).unwrap();
    let transaction = database.begin_read().unwrap();
    let rows = transaction.open_table(ROWS).unwrap();
    let rows = rows.iter().unwrap().map(|row| row.unwrap().1.value().to_vec()).collect();
    (rows, transaction.open_table(HASH).unwrap().get(()).unwrap().unwrap().value())
}

/// Opens a store whose checkpoint is the rows of another, with the hash of its own.
fn open_with(state: &StoreState) -> FileError {
    let hash = rows_of(&stopped_with(&rich())).1;
    overwrite(state, |t| drop(t.open_table(HASH).unwrap().insert((), hash).unwrap()))
}

/// The engine would assert against these contradictions. Opening a store into which one of them was edited must
/// report it instead.
#[test]
fn states_that_contradict_themselves_are_refused() {
    type Damage = fn(&mut StoreState);
    let cases: [Damage; 26] = [
        |s| s.partitions[1].leases[0].allocation.sequence = 9,
        |s| s.partitions[1].claims[0].node = NodeId(8),
        |s| s.partitions[1].releasing[0].allocation.sequence = 9,
        |s| s.partitions[1].claims[1].bundle = s.partitions[1].claims[0].bundle,
        |s| s.partitions[1].inside[0].bundle.sequence = 1,
        |s| s.partitions[1].inside[0].gpus.mask = 0b01,
        |s| s.partitions[1].reservations[1].node = NodeId(4),
        |s| s.partitions[1].reservations[0].left = ReservedAmounts::default(),
        |s| s.partitions[1].reservations[0].left.gpu = Amount::whole(17),
        |s| s.partitions[1].reservations[0].left.custom[0].0 = ResourceId(9),
        |s| s.registrar.next_node = 8,
        |s| s.registrar.resources.truncate(1),
        |s| s.registrar.resources[1] = "licence".to_owned(),
        |s| s.partitions[1].nodes[1].registration.spec.name = "node-3".into(),
        |s| s.partitions[1].nodes[1].registration.ordinal = Ordinal(3),
        |s| s.partitions[3].nodes[0].registration.spec.gpus = 17,
        |s| s.partitions[1].nodes[2].unhealthy[0].0 = 2,
        |s| s.registrar.removed[0].id = NodeId(3),
        |s| s.registrar.removed[0].ordinal = Ordinal(9),
        |s| s.registrar.removed[0].version = u64::MAX,
        |s| s.partitions[3].allocations[0].node = NodeId(4),
        |s| s.partitions[3].allocations[0].id.partition = PartitionId(9),
        |s| s.partitions[3].allocations[0].id.incarnation = Incarnation(6),
        |s| s.partitions[1].allocations[2].gpus.mask = 0b11,
        |s| {
            for allocation in &mut s.partitions[1].allocations[..2] {
                (allocation.node, allocation.external_id) = (NodeId(3), Some("pod".into()));
            }
        },
        |s| {
            let max = Amount::try_from_units(wharf_core::limits::AMOUNT_MAX).unwrap();
            s.partitions[3].allocations[0].demand.cpu = max;
        },
    ];
    for damage in cases {
        let mut state = rich();
        damage(&mut state);
        let error = open_with(&state);
        assert!(error.to_string().contains("restore both files"), "{error}");
    }
}

/// Overwrites one row of a stopped store and returns the error of opening it.
fn overwrite(state: &StoreState, change: impl FnOnce(&redb::WriteTransaction)) -> FileError {
    let directory = stopped_with(state);
    let database = Database::open(directory.path().join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    drop(database);
    let first = open(&directory).map(drop).unwrap_err();
    // The failed start consumed nothing: the next start finds the same damage instead of starting with empty
    // books.
    let second = open(&directory).map(drop).unwrap_err();
    assert_eq!(first.to_string(), second.to_string());
    first
}

type Rows<'a> = redb::Table<'a, u64, &'static [u8]>;

#[test]
fn damaged_rows_are_refused() {
    let (rows, _) = rows_of(&stopped_with(&rich()));
    assert!(rows.len() > 25, "{}", rows.len());
    let refused = |change: &dyn Fn(&mut Rows<'_>)| {
        let error = overwrite(&rich(), |t| change(&mut t.open_table(ROWS).unwrap()));
        assert!(error.to_string().contains("restore both files"), "{error}");
    };
    for (at, good) in (0..).zip(&rows) {
        // A missing row, truncated rows, and noise.
        refused(&|table| drop(table.remove(at).unwrap()));
        for bytes in [&[][..], &[0xff; 64], &good[..good.len() / 2], &good[..good.len() - 1]] {
            refused(&|table| drop(table.insert(at, bytes).unwrap()));
        }
        // A changed bit.
        for byte in (0..good.len()).step_by(7) {
            let mut damaged = good.clone();
            damaged[byte] ^= 1 << (byte % 8);
            refused(&|table| drop(table.insert(at, damaged.as_slice()).unwrap()));
        }
    }
    // Rows that change places.
    refused(&|table| {
        table.insert(0, rows[1].as_slice()).unwrap();
        table.insert(1, rows[0].as_slice()).unwrap();
    });
    refused(&|table| drop(table.insert(rows.len() as u64, rows[0].as_slice()).unwrap()));
    let error = overwrite(&rich(), |t| assert!(t.delete_table(HASH).unwrap()));
    assert!(error.to_string().contains("hash"), "{error}");
    // A row with the right hash that this version does not write.
    let mut hasher = StateHasher::new("checkpoint");
    [&[0xff][..]].into_iter().chain(rows[1..].iter().map(Vec::as_slice)).for_each(|row| {
        hasher.number(stable_hash(row));
    });
    add_numbers(&mut hasher, &rich());
    let error = overwrite(&rich(), |t| {
        t.open_table(ROWS).unwrap().insert(0, [0xff].as_slice()).unwrap();
        t.open_table(HASH).unwrap().insert((), hasher.finish().0).unwrap();
    });
    assert!(
        error.to_string().contains("row 0: ") && error.to_string().contains("restore both files"),
        "{error}"
    );
}

#[test]
fn damaged_numbers_are_told_by_name() {
    let cases = [
        ("format", 2, "has format 2"),
        ("partitions", 0, "partitions"),
        ("partitions", 70_000, "partitions"),
        ("incarnation", u64::MAX, "incarnation"),
        ("incarnation", 2, "not those of its last checkpoint"),
        ("partitions", 5, "not those of its last checkpoint"),
        ("now", 1, "not those of its last checkpoint"),
        ("next_node", 10, "not those of its last checkpoint"),
    ];
    for (key, number, named) in cases {
        let error = overwrite(&rich(), |t| {
            t.open_table(NUMBERS).unwrap().insert(key, number).unwrap();
            seal(t).unwrap();
        });
        assert!(error.to_string().contains(named), "{error}");
    }
    let short = [1u8; 3].as_slice();
    let error = overwrite(&rich(), |t| {
        t.open_table(IDENTITY).unwrap().insert("store", short).unwrap();
        seal(t).unwrap();
    });
    assert!(error.to_string().contains("identity"), "{error}");
}

/// Finds a start that trusts a number of which the database does not notice that it changed. Each of these would let it
/// begin with other books, or give ids again.
#[test]
fn changed_numbers_are_refused() {
    for (key, number) in [("clean", 0), ("journal", 3), ("from", 7), ("issued", 9), ("history", 2)] {
        let error = overwrite(&rich(), |t| drop(t.open_table(NUMBERS).unwrap().insert(key, number).unwrap()));
        assert!(error.to_string().contains("its numbers are not those that were written"), "{key}: {error}");
    }
    let other = [1u8; 16].as_slice();
    let error = overwrite(&rich(), |t| drop(t.open_table(IDENTITY).unwrap().insert("store", other).unwrap()));
    assert!(error.to_string().contains("its numbers are not those that were written"), "{error}");
}

/// Changes the database of a store as damage could, which redb does not see after a clean stop.
fn damaged(directory: &Path, change: impl FnOnce(&redb::WriteTransaction)) -> String {
    let database = redb::Database::open(directory.join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    let identity = || {
        let transaction = database.begin_read().unwrap();
        let table = transaction.open_table(IDENTITY).unwrap();
        table.get("store").unwrap().unwrap().value().to_vec()
    };
    let before = identity();
    drop(database);
    let error = Store::open(directory, PARTITIONS, Durability::Os).map(drop).unwrap_err().to_string();
    let database = redb::Database::open(directory.join(FILE)).unwrap();
    let transaction = database.begin_read().unwrap();
    let table = transaction.open_table(IDENTITY).unwrap();
    assert_eq!(table.get("store").unwrap().unwrap().value(), before, "it is the same store still");
    error
}

/// Would catch a start with empty books, or one that makes a new store of a damaged one.
#[test]
fn a_store_without_its_rows_or_its_format_is_damaged_and_not_new() {
    let directory = stopped_with(&rich());
    let error = damaged(directory.path(), |transaction| assert!(transaction.delete_table(ROWS).unwrap()));
    assert!(error.contains("its rows or their hash are missing"), "{error}");
    let directory = stopped_with(&rich());
    let error = damaged(directory.path(), |transaction| {
        transaction.open_table(NUMBERS).unwrap().remove("format").unwrap();
    });
    assert!(error.contains("it has no format"), "{error}");
    let directory = stopped_with(&rich());
    let error = damaged(directory.path(), |transaction| assert!(transaction.delete_table(NUMBERS).unwrap()));
    assert!(error.contains("it has no format"), "{error}");
}
