------------------------------- MODULE Lease -------------------------------
(* Leases of a sliding log: processes take several units of a limit in one  *)
(* call and spend them in their own memory. For readers: the argument of    *)
(* docs/leases.md in its smallest form. The tests of the crate check the    *)
(* code itself, for every algorithm and with more faults.                   *)
(*                                                                          *)
(* The promise: any Period instants in a row see at most Quota units spent. *)
(* It holds if the store counts a unit for Period + Life. With one instant  *)
(* less it does not: LeaseShort.cfg.                                        *)
EXTENDS Naturals

CONSTANTS
    Holders,    \* the processes
    Quota,      \* units in any Period
    Period,     \* instants
    Life,       \* a unit is spent at most so many instants after its call was sent
    Retention,  \* for how many instants the store counts a unit
    Units,      \* units of one lease
    MaxTime     \* the last instant

VARIABLES
    now,
    taken,      \* for each instant, the units taken then that the store counts
    spent,      \* for each instant, the units spent then
    holder,     \* for each process, what it holds
    wire        \* for each process, its message in flight

vars == <<now, taken, spent, holder, wire>>

Times == 0..MaxTime

RECURSIVE Sum(_, _, _)
Sum(f, from, to) == IF from > to THEN 0 ELSE f[from] + Sum(f, from + 1, to)

(* The units of the last `span` instants, this one included. *)
Last(f, span) == Sum(f, IF now >= span THEN (now - span) + 1 ELSE 0, now)

Nothing == [state |-> "nothing", units |-> 0, sent |-> 0, at |-> 0]
NoMessage == [kind |-> "none", units |-> 0, at |-> 0]

Init ==
    /\ now = 0
    /\ taken = [t \in Times |-> 0]
    /\ spent = [t \in Times |-> 0]
    /\ holder = [h \in Holders |-> Nothing]
    /\ wire = [h \in Holders |-> NoMessage]

(* The deadline counts from before the call was sent, and the process reads *)
(* its clock once an instant: it may still spend in the deadline's instant. *)
Alive(h) == now <= holder[h].sent + Life

Holds(h) == holder[h].state = "holding" /\ Alive(h) /\ holder[h].units > 0

(* One call in flight: a process that asks does not ask again. *)
Ask(h) ==
    /\ holder[h].state = "nothing"
    /\ wire[h] = NoMessage
    /\ holder' = [holder EXCEPT ![h] = [Nothing EXCEPT !.state = "asking", !.sent = now]]
    /\ wire' = [wire EXCEPT ![h] = [kind |-> "call", units |-> Units, at |-> 0]]
    /\ UNCHANGED <<now, taken, spent>>

Fits(units) == Last(taken, Retention) + units <= Quota

(* The call arrives, sooner or later. *)
Take(h) ==
    /\ wire[h].kind = "call"
    /\ IF Fits(Units)
       THEN /\ taken' = [taken EXCEPT ![now] = @ + Units]
            /\ wire' = [wire EXCEPT ![h] = [kind |-> "grant", units |-> Units, at |-> now]]
       ELSE /\ wire' = [wire EXCEPT ![h] = [kind |-> "refusal", units |-> 0, at |-> 0]]
            /\ UNCHANGED taken
    /\ UNCHANGED <<now, spent, holder>>

(* A grant that comes after its deadline is worth nothing. *)
Reply(h) ==
    /\ wire[h].kind \in {"grant", "refusal"}
    /\ wire' = [wire EXCEPT ![h] = NoMessage]
    /\ holder' =
        [holder EXCEPT ![h] =
            IF wire[h].kind = "grant" /\ Alive(h)
            THEN [@ EXCEPT !.state = "holding", !.units = wire[h].units, !.at = wire[h].at]
            ELSE Nothing]
    /\ UNCHANGED <<now, taken, spent>>

(* A message is lost. A process that asks gives up once its deadline has passed. *)
Lose(h) ==
    /\ wire[h] /= NoMessage
    /\ wire' = [wire EXCEPT ![h] = NoMessage]
    /\ UNCHANGED <<now, taken, spent, holder>>

GiveUp(h) ==
    /\ holder[h].state = "asking"
    /\ ~Alive(h)
    /\ wire[h] = NoMessage
    /\ holder' = [holder EXCEPT ![h] = Nothing]
    /\ UNCHANGED <<now, taken, spent, wire>>

Spend(h) ==
    /\ Holds(h)
    /\ spent' = [spent EXCEPT ![now] = @ + 1]
    /\ holder' = [holder EXCEPT ![h].units = @ - 1]
    /\ UNCHANGED <<now, taken, wire>>

(* The lease is spent, has lapsed, or its process has been killed. *)
End(h) ==
    /\ holder[h].state = "holding"
    /\ holder' = [holder EXCEPT ![h] = Nothing]
    /\ UNCHANGED <<now, taken, spent, wire>>

(* Unused units go back, and are taken from the instant at which they were taken. *)
Leave(h) ==
    /\ Holds(h)
    /\ wire[h] = NoMessage
    /\ wire' =
        [wire EXCEPT ![h] = [kind |-> "back", units |-> holder[h].units, at |-> holder[h].at]]
    /\ holder' = [holder EXCEPT ![h] = Nothing]
    /\ UNCHANGED <<now, taken, spent>>

Return(h) ==
    /\ wire[h].kind = "back"
    /\ taken' = [taken EXCEPT ![wire[h].at] = @ - wire[h].units]
    /\ wire' = [wire EXCEPT ![h] = NoMessage]
    /\ UNCHANGED <<now, spent, holder>>

(* A request asks for itself alone, and is admitted when its unit is taken. *)
Alone ==
    /\ Fits(1)
    /\ taken' = [taken EXCEPT ![now] = @ + 1]
    /\ spent' = [spent EXCEPT ![now] = @ + 1]
    /\ UNCHANGED <<now, holder, wire>>

Tick ==
    /\ now < MaxTime
    /\ now' = now + 1
    /\ UNCHANGED <<taken, spent, holder, wire>>

Next ==
    \/ Tick
    \/ Alone
    \/ \E h \in Holders :
        \/ Ask(h) \/ Take(h) \/ Reply(h) \/ Lose(h) \/ GiveUp(h)
        \/ Spend(h) \/ End(h) \/ Leave(h) \/ Return(h)

Spec == Init /\ [][Next]_vars

TypeOK ==
    /\ now \in Times
    /\ \A t \in Times : taken[t] \in 0..(2 * Quota) /\ spent[t] \in 0..(2 * Quota)
    /\ \A h \in Holders : holder[h].units \in 0..Units

(* The promise. *)
NeverOver == Last(spent, Period) <= Quota

(* Against vacuity: these are wrong, and have to be found so. *)
NothingIsSpentLate ==
    \A h \in Holders : Holds(h) => now < holder[h].at + Life
NeverFull == Last(spent, Period) < Quota
=============================================================================
