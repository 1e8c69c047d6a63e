//! Tasks by the node where they have something.

use super::{Jobs, Task, TaskId, TaskState};
use crate::ids::NodeId;

impl Jobs {
    /// Returns the tasks that have a node: they hold, have claimed or release capacity there.
    #[must_use]
    pub fn on_node(&self, node: NodeId) -> &[TaskId] {
        self.by_node.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Returns the nodes where tasks have something, in order of id.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.by_node.keys().copied()
    }

    /// Returns the nodes where tasks are releasing, in order of id.
    pub fn releasing_nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + '_ {
        self.releasing.keys().copied()
    }

    /// Returns whether tasks are releasing on a node.
    pub(crate) fn has_releasing(&self, node: NodeId) -> bool {
        self.releasing.contains_key(&node)
    }

    /// Changes the lists of tasks by node.
    pub(super) fn move_on_nodes(
        &mut self,
        id: TaskId,
        before: &Task,
        node: Option<NodeId>,
        state: TaskState,
    ) {
        if before.node != node {
            if let Some(left) = before.node {
                let tasks = self.by_node.get_mut(&left).expect("a task is listed at its node");
                let at = tasks.iter().rposition(|&task| task == id).expect("a task is listed at its node");
                tasks.remove(at);
                if tasks.is_empty() {
                    self.by_node.remove(&left);
                }
            }
            if let Some(node) = node {
                self.by_node.entry(node).or_default().push(id);
            }
        }
        if before.state == TaskState::Releasing {
            let node = before.node.expect("a releasing task has a node");
            let count = self.releasing.get_mut(&node).expect("a node with a releasing task is listed");
            *count -= 1;
            if *count == 0 {
                self.releasing.remove(&node);
            }
        }
        if state == TaskState::Releasing {
            *self.releasing.entry(node.expect("a releasing task has a node")).or_default() += 1;
        }
    }
}
