;; The inner loops of product.js on float32 numbers, four at a time. Its COMPILED is this file after
;; `npx -p wabt wat2wasm product.wat`, as base64.
(module
  (memory (export "memory") 1)

  ;; Sums of products of four rows (from addresses $a to $d) and two rows of weights ($p, $q), each of $bytes. Eight
  ;; sums in four parts each go to address 0: a p, a q, b p, and so on.
  (func (export "tile") (param $a i32) (param $b i32) (param $c i32) (param $d i32) (param $p i32) (param $q i32)
    (param $bytes i32)
    (local $ap v128) (local $aq v128) (local $bp v128) (local $bq v128)
    (local $cp v128) (local $cq v128) (local $dp v128) (local $dq v128)
    (local $x v128) (local $y v128) (local $row v128) (local $at i32)
    (loop $next
      (local.set $x (v128.load (i32.add (local.get $p) (local.get $at))))
      (local.set $y (v128.load (i32.add (local.get $q) (local.get $at))))
      (local.set $row (v128.load (i32.add (local.get $a) (local.get $at))))
      (local.set $ap (f32x4.add (local.get $ap) (f32x4.mul (local.get $row) (local.get $x))))
      (local.set $aq (f32x4.add (local.get $aq) (f32x4.mul (local.get $row) (local.get $y))))
      (local.set $row (v128.load (i32.add (local.get $b) (local.get $at))))
      (local.set $bp (f32x4.add (local.get $bp) (f32x4.mul (local.get $row) (local.get $x))))
      (local.set $bq (f32x4.add (local.get $bq) (f32x4.mul (local.get $row) (local.get $y))))
      (local.set $row (v128.load (i32.add (local.get $c) (local.get $at))))
      (local.set $cp (f32x4.add (local.get $cp) (f32x4.mul (local.get $row) (local.get $x))))
      (local.set $cq (f32x4.add (local.get $cq) (f32x4.mul (local.get $row) (local.get $y))))
      (local.set $row (v128.load (i32.add (local.get $d) (local.get $at))))
      (local.set $dp (f32x4.add (local.get $dp) (f32x4.mul (local.get $row) (local.get $x))))
      (local.set $dq (f32x4.add (local.get $dq) (f32x4.mul (local.get $row) (local.get $y))))
      (local.tee $at (i32.add (local.get $at) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $bytes))))
    (v128.store offset=0 (i32.const 0) (local.get $ap))
    (v128.store offset=16 (i32.const 0) (local.get $aq))
    (v128.store offset=32 (i32.const 0) (local.get $bp))
    (v128.store offset=48 (i32.const 0) (local.get $bq))
    (v128.store offset=64 (i32.const 0) (local.get $cp))
    (v128.store offset=80 (i32.const 0) (local.get $cq))
    (v128.store offset=96 (i32.const 0) (local.get $dp))
    (v128.store offset=112 (i32.const 0) (local.get $dq)))

  ;; Add $p times the numbers from address $from to those at $to, over $bytes.
  (func (export "add") (param $to i32) (param $from i32) (param $p f32) (param $bytes i32) (local $factor v128)
    (local.set $factor (f32x4.splat (local.get $p)))
    (local.set $bytes (i32.add (local.get $to) (local.get $bytes)))
    (loop $next
      (v128.store (local.get $to)
        (f32x4.add (v128.load (local.get $to)) (f32x4.mul (local.get $factor) (v128.load (local.get $from)))))
      (local.set $from (i32.add (local.get $from) (i32.const 16)))
      (local.tee $to (i32.add (local.get $to) (i32.const 16)))
      (br_if $next (i32.lt_u (local.get $bytes))))))
