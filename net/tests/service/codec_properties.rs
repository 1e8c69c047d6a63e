//! Properties of the body encoding. Reading any bytes ends in a value or an error, and takes no more memory
//! than a frame's worth. A value that was read is written again unchanged.

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{decode_body, decode_frame, encode_body, split_extensions};
use wharf_net::protocol::*;

/// Reads arbitrary bytes. A value that can be read survives being written and read again.
fn check_decode<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok((body, taken)) = decode_body::<T>(bytes) else { return };
    assert!(taken <= bytes.len());
    let mut written = Vec::new();
    encode_body(&body, &mut written);
    let (again, all) = decode_body::<T>(&written).expect("what was written can be read");
    assert_eq!((&again, all), (&body, written.len()));
}

struct Decodes<'a>(&'a [u8]);

impl MessageVisitor for Decodes<'_> {
    type Output = ();

    fn visit<M: Message>(self) {
        check_decode::<M::Request>(self.0);
        check_decode::<M::Reply>(self.0);
    }
}

fn check_every_type(bytes: &[u8]) {
    check_decode::<Fault>(bytes);
    Kind::ALL.iter().for_each(|kind| kind.visit(Decodes(bytes)));
}

fn name() -> impl Strategy<Value = String> {
    "[a-zé€]{0,12}"
}

fn names() -> impl Strategy<Value = Vec<Name>> {
    prop::collection::vec(name().prop_map(Name), 0..4)
}

fn amounts() -> impl Strategy<Value = Vec<NamedAmount>> {
    prop::collection::vec(
        (name(), any::<i64>()).prop_map(|(name, amount)| NamedAmount { name, amount }),
        0..4,
    )
}

fn term() -> impl Strategy<Value = SelectorTerm> {
    (name(), any::<u8>(), names()).prop_map(|(key, operator, values)| SelectorTerm { key, operator, values })
}

fn place() -> impl Strategy<Value = PlaceRequest> {
    let wanted = (any::<[i64; 3]>(), amounts(), any::<[u8; 4]>(), name(), any::<i32>());
    let where_ = (
        prop::collection::vec(term(), 0..3),
        prop::collection::vec((any::<i32>(), term()), 0..3),
        prop::collection::vec(any::<u64>(), 0..5),
        prop::collection::vec((name(), any::<u8>(), name(), any::<u8>()), 0..3),
    );
    let when = (any::<[u64; 3]>(), any::<Option<u64>>(), any::<u32>());
    let terms = || prop::collection::vec(term(), 0..3);
    let rather = (
        prop::collection::vec(terms().prop_map(|terms| FallbackSelector { terms }), 0..3),
        prop::collection::vec((any::<i32>(), terms()), 0..3),
        prop::collection::vec(any::<u64>(), 0..5),
        (any::<[u64; 2]>(), any::<u8>(), any::<bool>()),
    );
    (wanted, where_, when, rather).prop_map(|(wanted, where_, when, rather)| {
        let (fallbacks, preferred_selectors, preferred_nodes, ([node, owner], avoid_gpu, session_lease)) =
            rather;
        let ([cpu, memory, gpu], custom, [policy, attribute_order, mode, explain], queue, priority) = wanted;
        let (selectors, preferred, candidates, tolerations) = where_;
        let ([deadline, lease, expected_version], group, count) = when;
        PlaceRequest {
            demand: DemandBody { cpu, memory, gpu, custom },
            policy,
            attribute_order,
            queue,
            priority,
            selectors,
            preferred: preferred.into_iter().map(|(weight, term)| PreferredTerm { weight, term }).collect(),
            candidates,
            tolerations: tolerations
                .into_iter()
                .map(|(key, operator, value, effect)| Toleration { key, operator, value, effect })
                .collect(),
            mode,
            deadline,
            lease,
            group,
            expected_version,
            count,
            explain,
            fallbacks,
            preferred_selectors: preferred_selectors
                .into_iter()
                .map(|(weight, terms)| PreferredSelector { weight, terms })
                .collect(),
            preferred_nodes,
            node,
            avoid_gpu,
            owner,
            session_lease,
        }
    })
}

fn fault() -> impl Strategy<Value = Fault> {
    (any::<u16>(), name(), ".{0,40}", any::<u32>()).prop_map(|(reason, field, message, retry_after_ms)| {
        Fault { reason: ReasonCode(reason), field, message, retry_after_ms }
    })
}

fn allocation() -> impl Strategy<Value = WireAllocation> {
    any::<(u32, u16, u64, u16)>().prop_map(|(incarnation, partition, sequence, tenant)| WireAllocation {
        incarnation,
        partition,
        sequence,
        tenant,
    })
}

fn place_reply() -> impl Strategy<Value = PlaceReply> {
    let gpus = prop::collection::vec(any::<u8>(), 0..16);
    let placed = (any::<u64>(), name(), allocation(), gpus, any::<u16>()).prop_map(
        |(node, node_name, allocation, gpus, gpu_part)| PlacedBody {
            node,
            node_name,
            allocation,
            gpus,
            gpu_part,
            units: Vec::new(),
        },
    );
    let check = (any::<u16>(), name(), any::<u64>(), any::<i64>()).prop_map(
        |(reason, resource, nodes, least_short)| FailedCheck {
            reason: ReasonCode(reason),
            resource,
            nodes,
            least_short,
        },
    );
    let refusal = (any::<[u64; 2]>(), prop::collection::vec(check, 0..5))
        .prop_map(|([nodes, examined], checks)| RefusalBody { nodes, examined, checks });
    let parts = (prop::option::of(placed), prop::option::of(refusal), prop::option::of(fault()));
    (any::<u16>(), parts).prop_map(|(reason, (placed, refusal, fault))| PlaceReply {
        reason: ReasonCode(reason),
        placed,
        refusal,
        fault,
        alternative: 0,
    })
}

fn templates() -> impl Strategy<Value = Vec<BundleTemplate>> {
    let template = (place(), any::<u64>(), any::<u32>()).prop_map(|(request, owner, count)| {
        let request = PlaceRequest { owner, ..request };
        BundleTemplate { request, count }
    });
    prop::collection::vec(template, 0..3)
}

fn create_group() -> impl Strategy<Value = CreateGroupRequest> {
    let topology = (name(), any::<u8>(), any::<u32>()).prop_map(|(key, rule, max_skew)| TopologyBody {
        key,
        rule,
        max_skew,
    });
    let numbers = (any::<[u8; 3]>(), any::<u32>(), any::<u64>(), any::<i32>());
    (templates(), prop::option::of(topology), numbers).prop_map(|(bundles, topology, numbers)| {
        let ([strategy, mode, conflict_detection], min_members, deadline, priority) = numbers;
        CreateGroupRequest {
            bundles,
            strategy,
            topology,
            min_members,
            mode,
            deadline,
            priority,
            conflict_detection,
        }
    })
}

fn operation() -> impl Strategy<Value = OperationBody> {
    let numbers = (any::<u8>(), any::<[u64; 3]>(), any::<Option<u64>>(), any::<[i64; 3]>(), any::<u16>());
    let gpus = prop::collection::vec(any::<u8>(), 0..16);
    (numbers, amounts(), gpus, prop::option::of(allocation())).prop_map(
        |(numbers, custom, gpus, allocation)| {
            let (operation, [node, owner, grace], expected_version, [cpu, memory, gpu], tenant) = numbers;
            OperationBody {
                operation,
                node,
                expected_version,
                demand: DemandBody { cpu, memory, gpu, custom },
                gpus,
                owner,
                allocation,
                grace,
                tenant,
            }
        },
    )
}

fn group_id() -> impl Strategy<Value = WireGroup> {
    any::<(u32, u64, u16)>().prop_map(|(incarnation, number, tenant)| WireGroup {
        incarnation,
        number,
        tenant,
    })
}

fn conflict() -> impl Strategy<Value = ConflictBody> {
    let numbers = (any::<[u16; 2]>(), any::<[u64; 2]>(), any::<[Option<u64>; 2]>(), any::<[i64; 2]>());
    let others = (any::<Option<u8>>(), any::<Option<u16>>(), any::<u32>());
    let ids =
        (prop::option::of(allocation()), prop::option::of(group_id()), any::<Option<(u32, u16, u64)>>());
    (numbers, others, ids, (name(), name(), name())).prop_map(|(numbers, others, ids, texts)| {
        let ([operation, reason], [node, owner], [version, expected_version], [asked, available]) = numbers;
        let (instance, other, bundle) = others;
        let (allocation, group, statement) = ids;
        let (node_name, resource, message) = texts;
        let statement =
            statement.map(|(incarnation, planner, number)| WireStatement { incarnation, planner, number });
        ConflictBody {
            operation,
            reason: ReasonCode(reason),
            node,
            node_name,
            version,
            expected_version,
            resource,
            asked,
            available,
            instance,
            owner,
            allocation,
            statement,
            other,
            group,
            bundle,
            message,
        }
    })
}

fn group_reply() -> impl Strategy<Value = GroupReply> {
    let bundle =
        (any::<u32>(), any::<[i64; 3]>(), place_reply()).prop_map(|(index, [cpu, memory, gpu], reply)| {
            BundleBody { index, cpu, memory, gpu, placed: reply.placed, releasing_until: 0 }
        });
    let numbers = (group_id(), any::<[u8; 2]>(), any::<[u32; 2]>(), any::<i32>(), any::<u64>());
    let group = (numbers, prop::collection::vec(bundle, 0..4)).prop_map(|(numbers, bundles)| {
        let (id, [state, strategy], [min_members, attempts], priority, deadline) = numbers;
        let topology = None;
        GroupBody { id, state, strategy, topology, min_members, priority, deadline, attempts, bundles }
    });
    let facts = (any::<u16>(), any::<[u32; 3]>(), any::<Option<u32>>(), name(), name());
    let lists = (place_reply(), prop::collection::vec(conflict(), 0..3));
    let refusal =
        (facts, lists).prop_map(|((cause, numbers, bundle, resource, message), (reply, conflicts))| {
            let ([attempts, bundles, nodes], cause) = (numbers, ReasonCode(cause));
            let refusal = reply.refusal;
            GroupRefusalBody {
                cause,
                attempts,
                bundle,
                bundles,
                nodes,
                resource,
                refusal,
                conflicts,
                message,
            }
        });
    let parts = (prop::option::of(group), prop::option::of(refusal), prop::option::of(fault()));
    (any::<u16>(), parts).prop_map(|(reason, (group, refusal, fault))| {
        let reason = ReasonCode(reason);
        GroupReply { reason, group, refusal, fault }
    })
}

fn node() -> impl Strategy<Value = NodeBody> {
    let labels = prop::collection::vec((name(), name()).prop_map(|(key, value)| Pair { key, value }), 0..4);
    let taint = (name(), name(), any::<u8>()).prop_map(|(key, value, effect)| Taint { key, value, effect });
    let lists = (amounts(), labels, prop::collection::vec(taint, 0..3));
    (name(), name(), any::<[i64; 2]>(), any::<u32>(), lists).prop_map(
        |(name, identity, [cpu, memory], gpus, (custom, labels, taints))| NodeBody {
            name,
            identity,
            cpu,
            memory,
            gpus,
            custom,
            labels,
            taints,
        },
    )
}

fn node_status() -> impl Strategy<Value = NodeStatus> {
    let numbers = (any::<[u64; 3]>(), any::<u16>(), any::<u8>(), any::<u32>());
    let free = (any::<[i64; 2]>(), prop::collection::vec(any::<u16>(), 0..16));
    (numbers, free, node()).prop_map(|(numbers, ([cpu, memory], gpus_available), body)| {
        let ([id, ordinal, version], partition, state, allocations) = numbers;
        NodeStatus {
            id,
            ordinal,
            partition,
            state,
            version,
            body,
            cpu_available: cpu,
            memory_available: memory,
            gpus_available,
            allocations,
            unhealthy: vec![UnhealthyBody { instance: state, reason: "r".to_owned() }],
            agent: Some(AgentBody { boot: "b".to_owned(), gpus: vec![GpuBody::default()] }),
            reserved: Some(ReservedNode { owner: id, until: version }),
        }
    })
}

fn hello_reply() -> impl Strategy<Value = HelloReply> {
    (any::<u8>(), any::<[u8; 16]>(), any::<[u32; 7]>(), name(), any::<u64>(), any::<bool>()).prop_map(
        |(version, secret, numbers, software, number, resumed)| HelloReply {
            version,
            server: ServerIdentity { store: secret, incarnation: numbers[0], software },
            limits: Limits {
                frame_bytes_max: numbers[1],
                in_flight_max: numbers[2],
                unacknowledged_max: numbers[3],
                placements_per_message_max: numbers[4],
                nodes_per_message_max: numbers[5],
            },
            session: WireSession { incarnation: numbers[6], number },
            token: secret,
            resumed,
        },
    )
}

fn status_reply() -> impl Strategy<Value = StatusReply> {
    let shard = (any::<u16>(), any::<[u32; 5]>(), any::<[u64; 4]>(), any::<Option<u128>>()).prop_map(
        |(
            shard,
            [nodes_ready, nodes_draining, nodes_joining, nodes_lost, nodes_reserved],
            [allocations, placed, refused, released],
            state_hash,
        )| {
            ShardStatusBody {
                shard,
                nodes_ready,
                nodes_draining,
                nodes_joining,
                nodes_lost,
                nodes_reserved,
                allocations,
                placed,
                refused,
                released,
                state_hash,
            }
        },
    );
    let resource = (name(), any::<[i128; 5]>()).prop_map(
        |(name, [total, allocated, shortfall, unhealthy, reserved])| ResourceStatus {
            name,
            total,
            allocated,
            shortfall,
            unhealthy,
            reserved,
        },
    );
    let lists = (prop::collection::vec(shard, 0..4), prop::collection::vec(resource, 0..4));
    (hello_reply(), any::<[u64; 4]>(), lists, any::<Option<u128>>()).prop_map(
        |(hello, [now, uptime, resident_bytes, connections], (shards, resources), books_hash)| StatusReply {
            waiting: Waiting { feasible: now, infeasible: uptime },
            server: hello.server,
            now,
            uptime,
            resident_bytes,
            connections,
            shards,
            resources,
            books_hash,
        },
    )
}

/// A written value is read back unchanged and takes all its bytes. A prefix of them is not a valid body.
fn check_round_trip<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(body: &T) {
    let mut bytes = Vec::new();
    encode_body(body, &mut bytes);
    assert_eq!(decode_body::<T>(&bytes).as_ref().map(|(b, n)| (b, *n)), Ok((body, bytes.len())));
    for cut in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        assert!(cut == bytes.len() || decode_body::<T>(&bytes[..cut]).is_err());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_every_type(&bytes);
    }

    /// Small bytes are the numbers and lengths that get far into a body.
    #[test]
    fn small_bytes_are_read_or_refused(bytes in prop::collection::vec(0u8..5, 0..400)) {
        check_every_type(&bytes);
    }

    #[test]
    fn arbitrary_frames_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 24..200), flags in 0u8..8) {
        let length = u32::try_from(bytes.len() - 4).expect("short");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[6] = flags;
        let frame = decode_frame(&bytes, 1 << 20).expect("its length and flags are right").expect("all of it is there");
        prop_assert_eq!(frame.bytes, bytes.len());
        for at in 0..frame.payload.len() {
            let _ = split_extensions(&frame.header, &frame.payload[at..]);
        }
    }

    /// A message with one changed byte is another message or an error.
    #[test]
    fn a_changed_byte_is_read_or_refused(request in place(), at: prop::sample::Index, byte: u8) {
        let mut bytes = Vec::new();
        encode_body(&request, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        check_every_type(&bytes);
    }

    #[test]
    fn requests_survive(
        requests in prop::collection::vec(place(), 0..4), nodes in prop::collection::vec(node(), 0..4),
        names in names(), allocations in prop::collection::vec(allocation(), 0..5),
        flag: bool, after: u64, limit: u16, resume in prop::option::of((any::<[u8; 16]>(), any::<(u32, u64)>())),
        client in name(), versions: (u8, u8),
    ) {
        let resume = resume.map(|(token, (incarnation, number))| Resume { session: WireSession { incarnation, number }, token });
        check_round_trip(&Hello { version_min: versions.0, version_max: versions.1, client, resume });
        for request in &requests {
            check_round_trip(request);
        }
        check_round_trip(&PlaceBatch { requests });
        check_round_trip(&NodesRequest { nodes });
        check_round_trip(&DrainRequest { names: names.clone(), undo: flag });
        check_round_trip(&RemoveRequest { names, force: flag });
        check_round_trip(&ListRequest { after, limit });
        check_round_trip(&StatusRequest { audit: flag });
        let requests: Vec<_> = allocations.into_iter().map(|allocation| ReleaseRequest { allocation }).collect();
        for request in &requests {
            check_round_trip(request);
        }
        check_round_trip(&ReleaseBatch { requests });
    }

    #[test]
    fn groups_and_statements_survive(
        create in create_group(), operations in prop::collection::vec(operation(), 0..5), reply in group_reply(),
        conflict in prop::option::of(conflict()), places in prop::collection::vec(place_reply(), 0..3),
        group in group_id(), bundles in prop::collection::vec(any::<u32>(), 0..5), bundle: Option<u32>,
        numbers: [u8; 2], until: u64, more: bool,
    ) {
        check_round_trip(&create);
        check_round_trip(&GrowGroupRequest { group, bundles: create.bundles, mode: numbers[0], deadline: until });
        check_round_trip(&ShrinkGroupRequest { group, bundles });
        check_round_trip(&reply);
        let summary = GroupSummary { id: group, state: numbers[0], strategy: numbers[1], ..GroupSummary::default() };
        check_round_trip(&ListGroupsReply { groups: vec![summary; 3], more });
        let [conflict_detection, mode] = numbers;
        if let Some(OperationBody { demand, allocation, .. }) = operations.first().cloned() {
            let group = Some(group);
            check_round_trip(&PlaceIntoRequest { allocation, group, bundle, demand });
        }
        check_round_trip(&StatementRequest { operations, conflict_detection, mode });
        let operations = places.into_iter().map(|place| OperationReply {
            reason: place.reason, placed: place.placed, until, conflict: conflict.clone(), ..OperationReply::default()
        });
        let operations = operations.collect();
        check_round_trip(&StatementReply { reason: reply.reason, statement: None, operations, fault: reply.fault });
    }

    #[test]
    fn replies_survive(
        hello in hello_reply(), status in status_reply(), fault in fault(),
        places in prop::collection::vec(place_reply(), 0..4), nodes in prop::collection::vec(node_status(), 0..4),
        more: bool, node: u64, allocations_ended: u32,
    ) {
        check_round_trip(&hello);
        check_round_trip(&status);
        check_round_trip(&fault);
        for reply in &places {
            check_round_trip(reply);
        }
        check_round_trip(&PlaceBatchReply { replies: places });
        check_round_trip(&ListReply { nodes, more });
        let reply = NodeReply { reason: fault.reason, node, allocations_ended, fault: Some(fault.clone()) };
        check_round_trip(&NodesReply { replies: vec![NodeReply::default(), reply] });
        let released = ReleaseReply { reason: fault.reason, fault: Some(fault.clone()), inside_ended: None };
        check_round_trip(&released);
        check_round_trip(&ReleaseBatchReply { replies: vec![ReleaseReply::default(), released] });
        let reply = RenewedBody { reason: fault.reason, fault: Some(fault), until: node };
        let session = more.then_some(SessionRenewed { allocations: node, until: u64::from(allocations_ended) });
        check_round_trip(&RenewReply { replies: vec![RenewedBody::default(), reply], session });
    }
}
