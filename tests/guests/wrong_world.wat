;; A valid module that is not a policy: it exports something else.
(module
  (memory (export "memory") 1)
  (func (export "on_request") (param i32 i32) (result i32) (i32.const 0)))
