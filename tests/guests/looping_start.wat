;; A guest with the right exports whose start function never ends: instantiation must be bounded too.
(module
  (memory (export "memory") 1)
  (func $start (loop $again (br $again)))
  (start $start)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (unreachable))
  (func (export "weir:policy/handler@0.9.0#configure") (param i32 i32) (result i32) (unreachable))
  (func (export "weir:policy/handler@0.9.0#decide") (param i32 i32) (result i32) (unreachable))
  (func (export "weir:policy/handler@0.9.0#settle") (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32) (unreachable)))
