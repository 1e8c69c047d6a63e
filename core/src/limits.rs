//! All limits of the engine. Relations between them are checked at compile time.

/// The default number of virtual partitions of a store.
pub const PARTITIONS_DEFAULT: u16 = 256;
/// The maximum number of virtual partitions of a store.
pub const PARTITIONS_MAX: u16 = 4096;
/// The maximum number of shards of one process.
pub const SHARDS_MAX: u16 = 256;
/// The maximum number of ports (I/O threads, planners and the registrar) that may talk to the shards.
pub const PORTS_MAX: usize = 64;

/// The maximum number of indexed resource dimensions.
pub const DIMENSIONS_MAX: usize = 8;
/// The maximum number of custom kinds among the dimensions, in addition to cpu, memory, whole GPUs and the
/// largest GPU part.
pub const CUSTOM_DIMENSIONS_MAX: usize = 4;
/// The maximum number of attribute orders. Each has its own tree.
pub const ATTRIBUTE_ORDERS_MAX: usize = 8;
/// The maximum number of GPU instances of one node. A mask of a node's GPUs is a `u16`.
pub const GPU_INSTANCES_MAX: usize = 16;
/// The maximum number of units of one unit-instance kind on one node. A mask of them is a `u64`.
pub const UNIT_INSTANCES_MAX: usize = 64;
/// The maximum number of custom resource kinds of one node, and of one request.
pub const CUSTOM_RESOURCES_MAX: usize = 32;
/// The maximum number of custom resource kinds that a store learns.
pub const RESOURCE_KINDS_MAX: usize = 4096;
/// The number of known kinds above which waiting requests add no new ones. The rest is kept for nodes.
pub const RESOURCE_KINDS_WAITED_MAX: usize = RESOURCE_KINDS_MAX / 2;
/// The largest amount, in 1/10,000 of a unit. It is exact in a double, so every client can represent it.
pub const AMOUNT_MAX: i64 = 1 << 53;

/// The maximum length of a node name, label, label value, model or resource, in bytes.
pub const NAME_BYTES_MAX: usize = 253;
/// The maximum number of labels of one node.
pub const LABELS_MAX: usize = 64;
/// The maximum number of terms of one selector, and of values of one term.
pub const SELECTOR_TERMS_MAX: usize = 32;
/// The maximum number of preferred selectors of one request.
pub const PREFERRED_SELECTORS_MAX: usize = 8;
/// The largest weight of a preferred selector. The smallest is 1.
pub const PREFERENCE_WEIGHT_MAX: u8 = 100;
/// The maximum number of fallback selectors of one request.
pub const FALLBACK_SELECTORS_MAX: usize = 8;
/// The maximum number of preferred nodes of one request.
pub const PREFERRED_NODES_MAX: usize = 64;
/// The maximum number of tolerations of one request.
pub const TOLERATIONS_MAX: usize = 32;
/// The maximum number of taints of one node.
pub const TAINTS_MAX: usize = 32;
/// The maximum number of named candidate nodes of one request: 512 KiB of ids.
pub const CANDIDATES_MAX: usize = 65_536;
/// The maximum number of candidates in the unanswered requests of one connection (8 MiB of ids). A connection
/// above it is not read from.
pub const CANDIDATES_IN_FLIGHT_MAX: usize = 1 << 20;
/// The maximum number of candidates in the waiting requests of one connection (32 MiB of ids).
pub const CANDIDATES_WAITING_MAX: usize = 4 << 20;
/// The maximum number of candidates in the waiting requests of one port (128 MiB of ids).
pub const PORT_CANDIDATES_WAITING_MAX: usize = 16 << 20;
/// The maximum number of nodes of a service.
pub const NODES_MAX: usize = 4_000_000;

/// The number of removed nodes whose machine gets its old id again when it returns.
pub const REMOVED_NODES_KEPT_MAX: usize = 4096;
/// The default share of a shard's nodes that may be reserved at once, in percent (as in YARN).
pub const RESERVED_NODES_PERCENT_DEFAULT: u8 = 5;
/// The default time that a node's agent may be silent before the node is lost, in ns.
pub const NODE_LOST_AFTER_DEFAULT: u64 = 30_000_000_000;
/// The number of heartbeats that an agent may miss before its node is lost.
pub const BEATS_MISSED_MAX: u64 = 3;

/// The number of slots of a ring between a port and a shard, in each direction.
pub const RING_SLOTS: usize = 4096;
/// The maximum number of requests that one port may have in the engine at once.
///
/// Each has at most one command or answer in each ring, and so does a question to every shard. An answer
/// therefore always has room in its ring, and a shard never waits for an I/O thread.
pub const PORT_IN_FLIGHT_MAX: usize = 3584;
/// The time that commands of one port may queue at a shard, in ns. From the measured time per command follows how many a
/// port should have there ([`Port::window`](crate::router::Port::window)).
pub const QUEUE_NS: u64 = 1_000_000;
/// The minimum number of commands that a port may have at a shard, however slow they are: one at work, and those until
/// the thread of the port runs again.
pub const SHARD_WINDOW_MIN: usize = 4;
/// The time that a batch should take at most, in ns. A batch has at least one command.
pub const BATCH_NS: u64 = QUEUE_NS / 4;
/// The number of commands over which their mean time is taken.
pub const PACE_COMMANDS: u64 = 256;
/// The most by which one batch multiplies the mean time.
pub const PACE_GROWTH_MAX: u64 = 2;
/// The time that a port spends in a shard that it runs itself, in ns, by the measured time per command.
pub const LONE_NS_MAX: u64 = 100_000;
/// The number of commands up to which a port runs a shard that sleeps, instead of waking its thread. In the time that it
/// takes to wake a thread, and then the port's, about this many commands are decided.
pub const LONE_COMMANDS_MAX: usize = 32;
/// The maximum number of questions to every shard among these requests. Each costs every shard a command, and
/// one answer per shard is kept.
pub const EVERY_IN_FLIGHT_MAX: usize = 8;
/// The maximum number of commands about waiting requests that one port may have in the engine, in addition to
/// the requests.
pub const WAIT_IN_FLIGHT_MAX: usize = 512;
/// The maximum number of requests that may wait at one port. A shard holds a copy of those of all its ports.
pub const PORT_WAITING_MAX: usize = 16_384;
/// The maximum number of requests that may wait at one connection.
pub const CONNECTION_WAITING_MAX: usize = 4096;
/// The maximum number of waiting requests that one event at a node wakes. The rest is woken as these are
/// answered.
pub const WOKEN_PER_EVENT_MAX: usize = 256;
/// The maximum number of vertices and shapes that one event at a node examines among the waiting requests.
/// After that, the node is put off.
pub const WAKE_LOOKS_MAX: u64 = 512;
/// The maximum number of shapes that one `GoOn` command examines for nodes that were put off. The same limit
/// applies separately to homes.
pub const GO_ON_LOOKS_MAX: u64 = 256;
/// The number of shapes kept for a node that was put off, while the others are examined.
pub const PUT_OFF_KEPT: usize = 16;
/// The maximum number of candidates for which a waiting request is filed under each of them.
pub const FILED_CANDIDATES_MAX: usize = 16;
/// The maximum number of values of a term for which a waiting request is filed under each of them.
pub const FILED_VALUES_MAX: usize = 4;
/// The maximum number of nodes and shapes that a status, or the books of a node, examine for the homes of
/// waiting requests.
pub const HOME_LOOKS_MAX: u64 = 8192;
/// The maximum number of nodes examined in order of size for one home. After that, all nodes are examined in
/// order of place.
pub const HOME_SEARCH_LOOKS_MAX: u64 = 64;
/// The number of node changes that are remembered. A shape without a home is checked against these nodes
/// only.
pub const HOME_CHANGES_KEPT: usize = 256;
/// The maximum number of requests of one batch.
pub const BATCH_MAX: usize = 1024;
/// The number of requests that a shard takes from one ring before it turns to the next. No ring starves
/// another.
pub const RING_QUANTUM: usize = 64;

/// The maximum size of a candidate set that is walked directly. Larger sets only filter the index search.
pub const CANDIDATE_WALK_MAX: usize = 256;
/// The maximum number of named candidates that are walked at once. For more, a search over all nodes is
/// tried.
pub const NAMED_WALK_MAX: usize = 256;
/// The number of selectors whose candidate sets a shard keeps.
pub const SELECTORS_KEPT_MAX: usize = 256;
/// The number of preference sets whose ranks a shard keeps.
pub const RANKINGS_KEPT_MAX: usize = 64;
/// The maximum number of tiers of one ranking that are kept as one bit per node each. A ranking with more
/// tiers keeps a rank per node.
pub const TIERS_OF_BITS_MAX: usize = 16;
/// The maximum number of node sets that a ranking is built from. Above it, each node is ranked individually.
pub const RANK_PARTS_MAX: usize = 64;
/// The number of nodes that one refusal counts one by one, unless it asks for all.
pub const EXPLAIN_NODES_MAX: u32 = 4096;
/// The number of nodes that a refusal compares in one step of a dimension. All others are counted without a look.
pub const STEP_NODES_MAX: usize = 256;
/// The number of slots of the node table, including vacant ones, that a refusal examines per counted node.
pub const EXPLAIN_SLOTS_PER_NODE: u32 = 4;
/// The number of slots of the node table that one page of an audit reads.
pub const AUDIT_PAGE_NODES: u32 = 32;
/// The number of allocations after which a page of an audit ends. A node that was started is read to its end.
pub const AUDIT_PAGE_ALLOCATIONS: u32 = 256;
/// The maximum time to live of a lease, in ns: 365 days.
pub const LEASE_NS_MAX: u64 = 365 * 86_400 * 1_000_000_000;
/// The maximum number of allocations whose lease is over that one `GoOn` command ends.
pub const LEASES_ENDED_MAX: u32 = 256;
/// The number of nodes and allocations after which a page of a checkpoint ends. A node that was started is read to its
/// end.
pub const CHECKPOINT_PAGE_RECORDS: u32 = 256;
/// The number of nodes per draw. `Random` makes one draw per this many nodes, within the bounds below, before
/// it lists the fitting nodes instead.
pub const RANDOM_DRAWS_PART: usize = 16;
/// The minimum number of draws.
pub const RANDOM_DRAWS_MIN: usize = 32;
/// The maximum number of draws.
pub const RANDOM_DRAWS_MAX: usize = 1024;
/// The maximum number of different requests of one group that are watched. If there are more, the group is tried when
/// anything grows.
pub const WATCHED_REQUESTS_MAX: usize = 8;
/// The maximum number of requests of waiting groups that one planner watches. Other groups are tried when anything grows.
pub const WATCHES_MAX: usize = 1 << 14;
/// The maximum number of commands about watched requests that one planner has in flight.
pub const WATCH_IN_FLIGHT_MAX: usize = 512;
/// The number of watched requests that are being made known to the shards, or removed, at which a planner begins no
/// further job.
pub const WATCH_STEPS_MAX: usize = 1 << 12;
/// The maximum number of times that a refusal is retried because capacity was freed while the shards were
/// asked.
pub const REFUSAL_RETRIES_MAX: u8 = 4;
/// The maximum number of typical request shapes that fragmentation is measured against.
pub const TYPICAL_SHAPES_MAX: usize = 128;
/// The maximum number of GPU models that typical shapes name.
pub const TYPICAL_MODELS_MAX: usize = 32;
/// The share of all requests that the typical shapes cover, in percent. They are the most frequent shapes.
pub const TYPICAL_COVER_PERCENT: u64 = 95;
/// The number of request shapes that are counted while typical shapes are learned.
pub const LEARNT_SHAPES_MAX: usize = 1024;
/// The number of arrivals after which typical shapes are learned again. Below it, they are learned at each
/// power of two.
pub const LEARN_INTERVAL_MAX: u64 = 1 << 16;
/// The number of request shapes for which a shard keeps a short list of the least fragmented placements.
pub const SHORT_LISTS_MAX: usize = 512;
/// The number of nodes of a new short list. It may grow to four times as many.
pub const SHORT_LIST_NODES: usize = 64;
/// The number of remembered results of the fragmentation measure: a table of 16 bytes each.
pub const MEASURES_KEPT: usize = 1 << 15;
/// The minimum number of distinct GPU states of nodes that a shard numbers, or twice the nodes if that is
/// more.
pub const GPU_STATES_KEPT: usize = 1 << 12;
/// The time that a shard keeps the result of a statement that it asked to abort, in ns. The coordinator may still
/// ask for it.
pub const RESULT_KEPT_NS: u64 = 60_000_000_000;
/// The maximum number of nodes of one page of a node list, and of one registration batch.
pub const NODES_PER_MESSAGE_MAX: usize = 1024;
/// The maximum number of requests of one batched placement or release.
pub const PLACEMENTS_PER_MESSAGE_MAX: usize = 1024;
/// The number of publications after which a reader must release the shard view it keeps.
pub const VIEW_VERSIONS_MAX: u64 = 1 << 16;
/// The number of replaced bytes after which a reader must release its view.
pub const VIEW_BYTES_MAX: u64 = 256 << 20;
/// The number of publications that a shard makes ahead of the readers of its views. A power of two.
pub const VIEW_LOG: usize = 32;
/// The number of changed places that a shard reads at the end of a batch for a view, or twice those that the batch
/// changed. It goes on at the end of the next batch.
pub const VIEW_PLACES: usize = 1024;
/// The number of images of changed places that one read of a view takes over.
pub const VIEW_PORTION: usize = 1024;
/// The number of publications between checks by a port whether it may still keep its view.
pub const VIEW_LOOK_INTERVAL: u64 = 64;

/// The number of labels whose values a planner keeps with their nodes, for topology rules. The least recently
/// used label is replaced. The first group with a rule over another label costs a pass over the nodes.
pub const RULE_LABELS_KEPT_MAX: usize = 8;

/// The maximum number of nodes with one label value that a plan names. If more nodes have it, the plan
/// selects them by the label.
pub const RULE_NODES_NAMED_MAX: usize = 4096;

/// The maximum number of bundles of one placement group.
pub const GROUP_BUNDLES_MAX: usize = 1024;

/// The largest number of tasks of a job.
pub const JOB_TASKS_MAX: u32 = 100_000;

/// The most attempts to commit a direct placement that names a queue.
pub const DIRECT_ATTEMPTS_MAX: u32 = 8;

/// The most candidates of a direct placement that names a queue. They are kept with it.
pub const DIRECT_CANDIDATES_MAX: usize = 256;

/// The largest number of tasks that a job may need at once. They are placed by one statement.
pub const JOB_MIN_MEMBER_MAX: u32 = 4_096;
const _: () = assert!(JOB_MIN_MEMBER_MAX as usize <= STATEMENT_OPERATIONS_MAX);
/// The largest number of policies of a job, and of each task group of it.
pub const JOB_POLICIES_MAX: usize = 32;
/// How often a job is restarted, or a task of it, unless it says otherwise (Volcano's `maxRetry`).
pub const JOB_MAX_RETRY_DEFAULT: u32 = 3;
/// The largest number of restarts that a job may allow.
pub const JOB_MAX_RETRY_MAX: u32 = 1_000_000;
/// The largest number of tiers of the topology.
pub const TOPOLOGY_TIERS_MAX: usize = 8;
/// The largest number of domains of the topology that are objects.
pub const TOPOLOGY_DOMAINS_MAX: usize = 4_096;
/// The largest number of members of all domains that are objects: names of nodes, labels, and other domains.
pub const TOPOLOGY_MEMBERS_MAX: usize = 65_536;
/// The largest number of these members that are compared with each node whenever nodes change: names with `*`, and the
/// labels of a domain as one. A comparison takes some tens of ns.
pub const TOPOLOGY_SEARCHED_MEMBERS_MAX: usize = 256;
/// The most domains of a tier in which a cycle tries to make room for one job by evictions.
pub const TOPOLOGY_EVICTING_DOMAINS_MAX: usize = 32;
/// The most classes of tasks by which domains are chosen before a job is tried there. Other classes are only tried, and so many
/// different task groups are explained.
pub const TOPOLOGY_CLASSES_COUNTED_MAX: usize = 8;
/// The most counts that a scheduler keeps of how many tasks of a class fit on each node. What is free, what will be, and what
/// would be with evictions are counted apart. Beyond that, the one that was used least recently is forgotten.
pub const TOPOLOGY_COUNTS_MAX: usize = 1_024;
/// The most bytes that these counts take. Two for each of [`TOPOLOGY_CLASSES_COUNTED_MAX`] classes are kept in any case. A count
/// takes 4 bytes per node, and 16 to 32 per domain.
pub const TOPOLOGY_COUNTS_BYTES_MAX: usize = 128 << 20;
/// The most bytes of the paths of domains on a page of a job's tasks. A page ends with the first task beyond that.
pub const DOMAIN_BYTES_PER_PAGE_MAX: usize = 1 << 17;
/// The most bytes of the path of a domain: a value of each tier, and what separates them.
pub const DOMAIN_PATH_BYTES_MAX: usize = TOPOLOGY_TIERS_MAX * (NAME_BYTES_MAX + 1);
/// The largest number of jobs that have not ended.
pub const JOBS_MAX: usize = 1_000_000;
/// The largest number of tasks of all jobs together.
pub const TASKS_MAX: u64 = 10_000_000;
/// The number of ended jobs that are kept, the newest.
pub const JOBS_ENDED_KEPT: usize = 10_000;
/// The number of nodes, jobs and queues that the keeper of jobs looks at per round to explain why jobs wait, and at most one
/// page of nodes more. A look takes some tens of ns, a comparison of two jobs some hundreds.
pub const EXPLAIN_UNITS_PER_ROUND: u64 = 1 << 12;
/// The most tasks that wait for a cap which are looked at to tell how much of it is kept for them, and how many jobs are
/// served before one that is explained.
pub const WAITING_FOR_CAP_LOOKED_AT_MAX: usize = 1 << 10;
/// The largest number of queues.
pub const QUEUES_MAX: usize = 10_000;
/// The largest number of priority classes. All of them fit one message.
pub const PRIORITY_CLASSES_MAX: usize = 1_000;
/// The most bytes of the name of a priority class.
pub const CLASS_NAME_BYTES_MAX: usize = 64;
/// The most bytes of the description of a priority class.
pub const CLASS_DESCRIPTION_BYTES_MAX: usize = 256;
/// The time between the beginnings of two cycles, in ns, unless nothing has changed.
pub const CYCLE_INTERVAL_NS_DEFAULT: u64 = 100_000_000;
/// How long after a job with a date has ended the next one is to start there, in ns, if cycles have short intervals.
pub const DATE_GAP_NS_MIN: u64 = 1_000_000_000;
/// The largest number of levels of queues below the root.
pub const QUEUE_LEVELS_MAX: usize = 32;
/// The largest number of users of a queue whose past use is kept. Those with the least use make room for others.
pub const QUEUE_USERS_MAX: usize = 1_000;
/// The most bytes of the name of a user.
pub const USER_BYTES_MAX: usize = 64;
/// The largest number of users of a queue that a list of queues shows, those with the most use.
pub const QUEUE_USERS_SHOWN_MAX: usize = 64;
/// The largest number of users that are looked at for one page of a list of queues.
pub const USERS_LOOKED_AT_MAX: usize = 20_000;
/// The maximum number of dated reservations that cycles keep. Jobs that wait in addition have none.
pub const DATED_RESERVATIONS_MAX: usize = 64;
/// The number of expected ends, and of tasks on nodes, that one cycle looks at for dated reservations. A look takes some
/// tens of ns. After that, no dates are computed, and no job is placed that would need a look.
pub const DATED_LOOKS_MAX: u64 = 1 << 19;
/// How often the orders by past use are looked at while nothing changes, in ns. A cycle runs again if they are others.
pub const ORDERS_LOOKED_AT_NS: u64 = 1_000_000_000;
/// The number of queues, users, jobs, task groups, tasks and run times that the keeper of jobs copies per round for a plan of
/// nodes. It may exceed this by one queue with its users, or by one job with its task groups. It also copies what changed in
/// between.
pub const JOBS_COPIED_PER_ROUND: u64 = 1 << 12;
/// The number of kinds of tasks whose run times are measured: those that were measured last.
pub const RUN_TIMES_MAX: usize = 1 << 14;
/// The largest number of node types that a plan of nodes chooses from. They are told apart by bits.
pub const NODE_TYPES_MAX: usize = 64;
/// The largest number of nodes that a plan launches, and that are being launched.
pub const PLANNED_NODES_MAX: u32 = 10_000;
/// The largest number of floors of a plan of nodes, and of its groups.
pub const FLOORS_MAX: usize = 256;
/// The largest number of waiting groups that a plan of nodes looks at. Those of lower priority are left out, then those that
/// wait for less long.
pub const WAITING_GROUPS_PLANNED_MAX: usize = 1 << 12;
/// The largest number of bundles of waiting groups that a plan of nodes looks at.
pub const WAITING_BUNDLES_PLANNED_MAX: u64 = 1 << 16;
/// The number of waiting groups and of their bundles that a planner looks at in one step for a plan of nodes. It may exceed
/// this by one group.
pub const WAITING_LOOKS_PER_PAGE: u64 = 1 << 12;
/// The number of kinds of waiting placements that a shard looks at in one step for a plan of nodes. It may exceed this by
/// the priorities of one kind.
pub const WAITING_SHAPES_PER_PAGE: usize = 1 << 10;
/// Maximum number of different requests of a group for which an explanation counts nodes, and one more if a bundle is named.
pub const EXPLAINED_REQUESTS_MAX: usize = 8;
/// Maximum number of turns and shapes that a shard looks at for a page of the count of placements that wait.
pub const WAITING_TURNS_PER_PAGE: usize = 1 << 10;
/// The largest number of kinds of waiting placements, with one priority each, that a plan of nodes looks at. Those of lower
/// priority are left out. Equal ones at several shards are several kinds.
pub const WAITING_ROWS_PLANNED_MAX: usize = 1 << 12;
/// The largest number of pending tasks, of floors and of bundles that a plan of nodes looks at.
pub const PLANNED_TASKS_MAX: u64 = 1_000_000;
/// The number of nodes, of tasks on nodes and of kinds of requests that a plan of nodes looks at. A look takes some
/// hundreds of ns. What is left then is not decided.
pub const PLAN_LOOKS_MAX: u64 = 1 << 24;
/// The largest number of domains of a label that are tried for a group.
pub const PLAN_DOMAINS_MAX: usize = 64;
/// The largest number of times at which a plan of nodes runs cycles.
pub const PLAN_EVENTS_MAX: usize = 1_024;
/// The largest number of starts, of waiting jobs, and of nodes to remove in a plan of nodes.
pub const PLAN_ROWS_MAX: usize = 10_000;
/// How many nodes are being launched at a time, unless a plan says otherwise, as in Ray.
pub const LAUNCHES_DEFAULT: u32 = 10;
/// How many places are looked for at most to trim the evictions of a plan: its victims times the tasks that it places. Plans with
/// more are not trimmed.
pub const TRIM_LOOKS_PER_PLAN: usize = 1024;
/// The same for all plans of a cycle.
pub const TRIM_LOOKS_PER_CYCLE: usize = 16_384;
/// The priority from which on tasks serve the cluster itself and are never evicted (Kubernetes:
/// `system-cluster-critical`).
pub const SYSTEM_PRIORITY: i32 = 2_000_000_000;

/// The number of ended bundles that a view tells planners, the newest of its shard. A planner that misses more
/// compares its bundles with the view. Takes at most 64 bytes per bundle in the shard, and as much in a view.
pub const BUNDLES_ENDED_KEPT: u64 = 4096;
/// The number of expired leases that a view tells followers, the newest of its shard. Takes 16 bytes per lease.
pub const LEASES_EXPIRED_KEPT: u64 = 4096;
/// The maximum number of groups of one planner.
pub const GROUPS_MAX: usize = 1 << 20;
/// The maximum number of operations of one statement. Their indexes are u16.
pub const STATEMENT_OPERATIONS_MAX: usize = 4096;
/// The maximum number of planner threads.
pub const PLANNERS_MAX: u16 = 32;
/// The maximum number of statements that a planner has in flight. Further jobs wait in its queue.
pub const PLANNER_FLIGHTS_MAX: usize = 256;
/// The maximum number of jobs that one port may have at the planners. Each uses at most two slots of each ring:
/// one for itself, and one for its cancel.
pub const PLANS_IN_FLIGHT_MAX: usize = RING_SLOTS / 2;
/// The maximum number of groups that may wait at one port. They count among its jobs.
pub const PORT_GROUPS_WAITING_MAX: usize = 1023;
/// The default maximum number of allocations of one node, including placed bundles and claims.
pub const ALLOCATIONS_PER_NODE_DEFAULT: u16 = 1024;
/// The largest configurable value. The number of free allocation slots of a node is an `i16`.
pub const ALLOCATIONS_PER_NODE_MAX: u16 = 32_767;
/// The maximum number of claims of one node. Planning another claim examines all of them.
pub const CLAIMS_PER_NODE_MAX: usize = 1024;
/// The number of failed attempts after which a group takes a ticket and reserves what it needs.
pub const STATEMENT_LOSSES_MAX: u32 = 6;
/// The maximum number of waiting groups that a planner retries per round. Other jobs and answers are handled
/// in between.
pub const GROUP_RETRIES_PER_ROUND: usize = 64;
/// The maximum number of waiting groups that a planner visits per round because something grew.
pub const GROWTH_GROUPS_PER_ROUND: usize = 1024;
/// The number of work units after which a planner's round starts nothing more. A unit is an examined node,
/// index vertex or bundle, and takes some tens of ns.
pub const ROUND_WORK_MAX: u64 = 1 << 17;
/// The number of work units after which the search for one group's placement is given up.
pub const SEARCH_WORK_MAX: u64 = 1 << 19;
/// The number of work units after which a proof that a group is infeasible continues in a later round.
pub const PROOF_WORK_MAX: u64 = 1 << 15;
/// The number of steps (kind and sink pairs) after which a proof gives up a bound by flows.
pub const PROOF_FLOW_MAX: usize = 1 << 22;
/// The number of work units that the jobs of one client of a port may use before the next client's turn.
pub const CLIENT_QUANTUM: u64 = 1 << 13;
/// The number of groups without a placement whose verdict a planner keeps, for groups that ask the same.
pub const VERDICTS_KEPT_MAX: usize = 256;
/// The number of orders, in addition to "largest first", in which different bundles are tried before a group
/// is refused.
pub const GROUP_ORDERS_MAX: usize = 4;
/// The number of nodes that are tried for several bundles together, because their devices may not fit after
/// all.
pub const TOGETHER_TRIES_MAX: usize = 16;
/// The default time that a shard holds its part of a statement before it asks to abort, in ns.
pub const HOLD_NS_DEFAULT: u64 = 1_000_000_000;
/// The default time that a ticket keeps its reservations, in ns.
pub const TICKET_NS_DEFAULT: u64 = 10_000_000_000;

const _: () = assert!(
    STATEMENT_OPERATIONS_MAX >= 2 * GROUP_BUNDLES_MAX && STATEMENT_OPERATIONS_MAX <= u16::MAX as usize
);
const _: () = assert!(PORT_IN_FLIGHT_MAX + WAIT_IN_FLIGHT_MAX <= RING_SLOTS);
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
