//! Every bound of the engine in one place, with the relations between them proved at compile time.

/// Virtual partitions of a store when none is configured.
pub const PARTITIONS_DEFAULT: u16 = 256;
/// Most virtual partitions a store can be created with.
pub const PARTITIONS_MAX: u16 = 4096;
/// Most shards of one process.
pub const SHARDS_MAX: u16 = 256;
/// Most ports (I/O threads and the registrar) that may talk to the shards.
pub const PORTS_MAX: usize = 64;

/// Most indexed resource dimensions.
pub const DIMENSIONS_MAX: usize = 8;
/// Most custom kinds among them: beside cpu, memory, whole GPUs and the largest part of one.
pub const CUSTOM_DIMENSIONS_MAX: usize = 4;
/// Most attribute orders, each a tree of its own.
pub const ATTRIBUTE_ORDERS_MAX: usize = 8;
/// Most GPU instances of one node. A mask of a node's GPUs is a `u16`.
pub const GPU_INSTANCES_MAX: usize = 16;
/// Most units of one unit-instance kind on one node. A mask of them is a `u64`.
pub const UNIT_INSTANCES_MAX: usize = 64;
/// Most custom resource kinds of one node, and of one request.
pub const CUSTOM_RESOURCES_MAX: usize = 32;
/// Most custom resource kinds that a store learns.
pub const RESOURCE_KINDS_MAX: usize = 4096;
/// Kinds known, beyond which waiting requests teach a store no new ones: the rest is for nodes.
pub const RESOURCE_KINDS_WAITED_MAX: usize = RESOURCE_KINDS_MAX / 2;
/// Largest amount, in 1/10 000 of a unit: exact in a double, so that every client can hold it.
pub const AMOUNT_MAX: i64 = 1 << 53;

/// Longest name of a node, label, label value, model or resource, in bytes.
pub const NAME_BYTES_MAX: usize = 253;
/// Most labels of one node.
pub const LABELS_MAX: usize = 64;
/// Most terms of one selector, and most values of one term.
pub const SELECTOR_TERMS_MAX: usize = 32;
/// Most preferred selectors of one request.
pub const PREFERRED_SELECTORS_MAX: usize = 8;
/// Greatest weight of a preferred selector; the least is 1.
pub const PREFERENCE_WEIGHT_MAX: u8 = 100;
/// Most fallback selectors of one request.
pub const FALLBACK_SELECTORS_MAX: usize = 8;
/// Most preferred nodes of one request.
pub const PREFERRED_NODES_MAX: usize = 64;
/// Most tolerations of one request.
pub const TOLERATIONS_MAX: usize = 32;
/// Most taints of one node.
pub const TAINTS_MAX: usize = 32;
/// Most named candidate nodes of one request: 512 KiB of ids.
pub const CANDIDATES_MAX: usize = 65_536;
/// Candidates of the unanswered requests of one connection (8 MiB of ids): beyond, it is not read on.
pub const CANDIDATES_IN_FLIGHT_MAX: usize = 1 << 20;
/// Candidates of the requests that wait at one connection (32 MiB of ids).
pub const CANDIDATES_WAITING_MAX: usize = 4 << 20;
/// Candidates of the requests that wait at one port (128 MiB of ids).
pub const PORT_CANDIDATES_WAITING_MAX: usize = 16 << 20;
/// Most nodes a service holds.
pub const NODES_MAX: usize = 4_000_000;

/// Removed nodes whose machine gets its old id again when it comes back.
pub const REMOVED_NODES_KEPT_MAX: usize = 4096;
/// Share of a shard's nodes that may be reserved at once, in percent, unless configured (YARN's).
pub const RESERVED_NODES_PERCENT_DEFAULT: u8 = 5;
/// How long a node's agent may be silent before the node is lost, in ns, unless configured.
pub const NODE_LOST_AFTER_DEFAULT: u64 = 30_000_000_000;
/// Beats that an agent may miss before its node is lost.
pub const BEATS_MISSED_MAX: u64 = 3;

/// Slots of a ring between a port and a shard, each way.
pub const RING_SLOTS: usize = 4096;
/// Requests that one port may have in the engine at once. Each has at most one command or answer in
/// each ring, also a question to every shard. So an answer always finds room in its ring, and a shard
/// never waits for an I/O thread.
pub const PORT_IN_FLIGHT_MAX: usize = 3584;
/// Questions to every shard among these. Each costs every shard a command, and keeps an answer of each.
pub const EVERY_IN_FLIGHT_MAX: usize = 8;
/// Commands about waiting requests that one port may have in the engine besides.
pub const WAIT_IN_FLIGHT_MAX: usize = 512;
/// Requests that may wait at one port; a shard holds a copy of those of all its ports.
pub const PORT_WAITING_MAX: usize = 16_384;
/// Requests that may wait at one connection.
pub const CONNECTION_WAITING_MAX: usize = 4096;
/// Waiting requests that one event at a node wakes; the rest is woken as these are answered.
pub const WOKEN_PER_EVENT_MAX: usize = 256;
/// Vertices and shapes that one event at a node looks at among the waiting requests; after that the
/// node is put off.
pub const WAKE_LOOKS_MAX: u64 = 512;
/// Shapes that one command to go on looks at for nodes that were put off, and as many for homes.
pub const GO_ON_LOOKS_MAX: u64 = 256;
/// Shapes that are kept for a node that was put off, while the others are looked at.
pub const PUT_OFF_KEPT: usize = 16;
/// Candidates up to which a waiting request is filed under each of them.
pub const FILED_CANDIDATES_MAX: usize = 16;
/// Values of a term up to which a waiting request is filed under each of them.
pub const FILED_VALUES_MAX: usize = 4;
/// Nodes and shapes that a status or the books of a node look at for the homes of waiting requests.
pub const HOME_LOOKS_MAX: u64 = 8192;
/// Nodes that are looked at in order of size for one home, before all are looked at in order of place.
pub const HOME_SEARCH_LOOKS_MAX: u64 = 64;
/// Changes of nodes that are remembered, to look at these alone for a home that there was not.
pub const HOME_CHANGES_KEPT: usize = 256;
/// Requests of one batch.
pub const BATCH_MAX: usize = 1024;
/// Requests that a shard takes from one ring before it turns to the next: no ring starves another.
pub const RING_QUANTUM: usize = 64;

/// Candidate sets up to this size are walked directly; larger ones only filter the index search.
pub const CANDIDATE_WALK_MAX: usize = 256;
/// Named candidates up to this many are walked at once; of more, a search over all nodes is tried.
pub const NAMED_WALK_MAX: usize = 256;
/// Selectors whose candidate sets a shard keeps.
pub const SELECTORS_KEPT_MAX: usize = 256;
/// Sets of preferences whose ranks a shard keeps.
pub const RANKINGS_KEPT_MAX: usize = 64;
/// Tiers of one ranking up to which each keeps a bit per node; of more, a rank per node is kept.
pub const TIERS_OF_BITS_MAX: usize = 16;
/// Sets of nodes that a ranking is made of, beyond which each node is ranked by itself.
pub const RANK_PARTS_MAX: usize = 64;
/// Nodes that one refusal examines for its counts unless it asks for all.
pub const EXPLAIN_NODES_MAX: u32 = 4096;
/// Places of the node table that a refusal looks at per node that it counts, vacant ones included.
pub const EXPLAIN_SLOTS_PER_NODE: u32 = 4;
/// Places of the node table that one page of an audit reads.
pub const AUDIT_PAGE_NODES: u32 = 32;
/// Allocations after which a page of an audit ends; the node that was begun is read to its end.
pub const AUDIT_PAGE_ALLOCATIONS: u32 = 256;
/// Draws before `Random` lists the fitting nodes instead: one for so many nodes, within the bounds.
pub const RANDOM_DRAWS_PART: usize = 16;
/// Fewest of these draws.
pub const RANDOM_DRAWS_MIN: usize = 32;
/// Most of these draws.
pub const RANDOM_DRAWS_MAX: usize = 1024;
/// Times that a refusal is tried again because capacity came back while the shards were asked.
pub const REFUSAL_RETRIES_MAX: u8 = 4;
/// Most typical request shapes that fragmentation is measured against.
pub const TYPICAL_SHAPES_MAX: usize = 128;
/// Most GPU models that typical shapes name.
pub const TYPICAL_MODELS_MAX: usize = 32;
/// The typical shapes are the most frequent ones that make up so much of all requests.
pub const TYPICAL_COVER_PERCENT: u64 = 95;
/// Request shapes that are counted while typical ones are learnt.
pub const LEARNT_SHAPES_MAX: usize = 1024;
/// Arrivals after which typical shapes are learnt anew; before that many, at each power of two.
pub const LEARN_INTERVAL_MAX: u64 = 1 << 16;
/// Request shapes for which a shard keeps a short list of the least fragmented placements.
pub const SHORT_LISTS_MAX: usize = 512;
/// Nodes of a short list when it is made; it may grow to four times as many.
pub const SHORT_LIST_NODES: usize = 64;
/// Remembered results of the fragmentation measure: a table of 16 bytes each.
pub const MEASURES_KEPT: usize = 1 << 15;
/// Distinct GPU states of nodes that a shard numbers, at the least; twice the nodes if that is more.
pub const GPU_STATES_KEPT: usize = 1 << 12;
/// How long a shard keeps what it did of a statement that it had asked to abort, in ns: its
/// coordinator may ask for it still.
pub const RESULT_KEPT_NS: u64 = 60_000_000_000;
/// Nodes of one page of a node list, and of one registration batch.
pub const NODES_PER_MESSAGE_MAX: usize = 1024;
/// Requests of one batched placement or release.
pub const PLACEMENTS_PER_MESSAGE_MAX: usize = 1024;
/// Publications after which a reader of a shard's views has to let go of the one it keeps.
pub const VIEW_VERSIONS_MAX: u64 = 1 << 16;
/// Bytes replaced since, after which it has to.
pub const VIEW_BYTES_MAX: u64 = 256 << 20;
/// Publications after which a port that keeps a view looks whether it still may.
pub const VIEW_LOOK_INTERVAL: u64 = 64;

/// Labels whose values a planner keeps with their nodes, for rules over them; the one not used for longest
/// gives way. The first group with a rule over another costs a pass over the nodes.
pub const RULE_LABELS_KEPT_MAX: usize = 8;

/// Nodes of one value of a label that a plan names; where more have it, it selects them by the label.
pub const RULE_NODES_NAMED_MAX: usize = 4096;

/// Most bundles of one placement group.
pub const GROUP_BUNDLES_MAX: usize = 1024;
/// Most groups that one planner keeps.
pub const GROUPS_MAX: usize = 1 << 20;
/// Most operations of one statement. Their places are u16.
pub const STATEMENT_OPERATIONS_MAX: usize = 4096;
/// Most planner threads.
pub const PLANNERS_MAX: u16 = 32;
/// Statements that a planner has under way at once; jobs that would begin more wait in its queue.
pub const PLANNER_FLIGHTS_MAX: usize = 256;
/// Jobs that one port may have at the planners at once. Each has at most one slot of each ring.
pub const PLANS_IN_FLIGHT_MAX: usize = 3584;
/// Cancels of such jobs in the rings of one port, in addition to the jobs. A planner says when it took
/// one. Further cancels wait at the port.
pub const PLAN_CANCELS_IN_FLIGHT_MAX: usize = 512;
/// Groups that may wait at one port: they are some of its jobs.
pub const PORT_GROUPS_WAITING_MAX: usize = 1023;
/// Allocations of one node, what is placed into bundles there and what is claimed included, unless configured.
pub const ALLOCATIONS_PER_NODE_DEFAULT: u16 = 1024;
/// The most that can be configured: what a node has room for is counted in an `i16`.
pub const ALLOCATIONS_PER_NODE_MAX: u16 = 32_767;
/// Most claims of one node: each plan of another looks at all of them.
pub const CLAIMS_PER_NODE_MAX: usize = 1024;
/// Losses of a statement, after which it takes a ticket and reserves what it needs.
pub const STATEMENT_LOSSES_MAX: u32 = 6;
/// Waiting groups that a planner tries again per round: others' jobs and answers come between.
pub const GROUP_RETRIES_PER_ROUND: usize = 64;
/// Work units after which a round of a planner takes nothing more up. A unit is a node, a vertex of an index or a
/// bundle that is looked at: some tens of ns.
pub const ROUND_WORK_MAX: u64 = 1 << 17;
/// Work units after which the search for the places of one group is given up.
pub const SEARCH_WORK_MAX: u64 = 1 << 19;
/// Work units after which a proof that a group is infeasible goes on in a later round.
pub const PROOF_WORK_MAX: u64 = 1 << 15;
/// Looks at a kind and a sink after which a proof gives up a bound by flows.
pub const PROOF_FLOW_MAX: usize = 1 << 22;
/// Work units that the jobs of one client of a port may take before the next client has its turn.
pub const CLIENT_QUANTUM: u64 = 1 << 13;
/// Groups without a place whose verdict a planner keeps, for groups that ask the same.
pub const VERDICTS_KEPT_MAX: usize = 256;
/// Orders beside "largest first" in which bundles that differ are tried before a group finds no place.
pub const GROUP_ORDERS_MAX: usize = 4;
/// Nodes that are tried to hold several bundles together whose devices may not fit there after all.
pub const TOGETHER_TRIES_MAX: usize = 16;
/// How long a shard holds its part of a statement before it asks to abort, in ns, unless configured.
pub const HOLD_NS_DEFAULT: u64 = 1_000_000_000;
/// How long a statement with a ticket keeps what it reserved, in ns, unless configured.
pub const TICKET_NS_DEFAULT: u64 = 10_000_000_000;

const _: () = assert!(
    STATEMENT_OPERATIONS_MAX >= 2 * GROUP_BUNDLES_MAX && STATEMENT_OPERATIONS_MAX <= u16::MAX as usize
);
const _: () = assert!(PORT_IN_FLIGHT_MAX + WAIT_IN_FLIGHT_MAX <= RING_SLOTS);
const _: () = assert!(PLANS_IN_FLIGHT_MAX + PLAN_CANCELS_IN_FLIGHT_MAX <= RING_SLOTS);
const _: () = assert!(PORT_GROUPS_WAITING_MAX < PLANS_IN_FLIGHT_MAX);
const _: () = assert!(
    EVERY_IN_FLIGHT_MAX * SHARDS_MAX as usize <= PORT_IN_FLIGHT_MAX,
    "questions to every shard cost no more than other requests may"
);
const _: () = assert!(CONNECTION_WAITING_MAX <= PORT_WAITING_MAX);
const _: () = assert!(PLACEMENTS_PER_MESSAGE_MAX <= PORT_IN_FLIGHT_MAX);
const _: () = assert!(NODES_PER_MESSAGE_MAX + EVERY_IN_FLIGHT_MAX <= PORT_IN_FLIGHT_MAX);
const _: () = assert!(CANDIDATES_MAX <= CANDIDATES_IN_FLIGHT_MAX);
const _: () = assert!(CANDIDATES_MAX <= CANDIDATES_WAITING_MAX);
const _: () = assert!(CANDIDATES_WAITING_MAX <= PORT_CANDIDATES_WAITING_MAX);
const _: () = assert!(RING_SLOTS.is_power_of_two());
const _: () = assert!(PROOF_WORK_MAX <= ROUND_WORK_MAX && CLIENT_QUANTUM <= ROUND_WORK_MAX);
const _: () = assert!(GPU_INSTANCES_MAX <= 16, "a GPU mask is a u16");
const _: () = assert!(MEASURES_KEPT.is_power_of_two());
const _: () = assert!(TYPICAL_SHAPES_MAX < u8::MAX as usize, "classes are u8");
const _: () = assert!(RING_QUANTUM <= BATCH_MAX);
const _: () = assert!(PARTITIONS_DEFAULT <= PARTITIONS_MAX);
