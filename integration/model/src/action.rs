/// One thing that happens. Numbers are places: of a node, a ComputeDomain, a controller, an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A person creates the ComputeDomain.
    Create(usize),
    /// A person deletes it; where deletion is graceful, first by a timestamp.
    Delete(usize),
    /// The scheduler allocates its claim on a node.
    Schedule(usize, usize),
    /// The claim's pod is deleted by force.
    EndClaim(usize, usize),
    /// Somebody backs up the first IMEXDomain.
    Backup,
    /// Somebody restores its status from there.
    Restore,
    /// A person says that a lost node is off for good, and takes off its object what it lists.
    Release(usize),
    /// An agent does something.
    Agent(usize, Act),
    /// A watch shows a controller an object.
    See(usize, Kind),
    /// A controller takes for true of the ComputeDomains what stands at the second place.
    Believe(usize, usize),
    /// A controller sends the write of the second place among those that it would decide now.
    Decide(usize, usize),
    /// A write arrives.
    Arrive(usize),
    /// A write is lost on its way.
    Drop(usize),
}

/// What happens on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Its watch shows it its own object.
    SeeNode,
    /// Its watch shows it the domain.
    SeeDomain,
    /// The kubelet asks for a claim of this ComputeDomain to be prepared.
    Ask(usize),
    /// The kubelet's call has taken too long.
    GiveUp(usize),
    /// The claim is undone: its checkpoint is gone.
    Unprepare(usize),
    /// The agent wants to enter the channel of this ComputeDomain.
    Enter(usize),
    /// It gives the ComputeDomain a number.
    Allocate(usize),
    /// It leaves what no claim holds.
    Leave,
    /// It puts back what its claims rest on.
    Keep,
    /// It says what else it has to say.
    Report,
    /// Whatever it wants, in one write.
    Together,
    /// Its write is answered.
    Answer,
    /// Its write is not answered.
    NoAnswer,
    /// An earlier write arrives.
    Ghost,
    /// It gives its runner another domain.
    Switch,
    /// The runner obeys.
    Obey,
    /// It dies, and begins anew.
    Crash,
    /// The node is lost.
    Lose,
}

/// A kind of object, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An IMEXDomain.
    Domain(usize),
    /// An IMEXNode.
    ImexNode(usize),
    /// A Node.
    Node(usize),
    /// A ComputeDomain.
    Cd(usize),
    /// The claim on a node of a ComputeDomain.
    Claim(usize, usize),
}
