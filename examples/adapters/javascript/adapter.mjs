// A KV-cache calculator in JavaScript that kvconform can ask: full attention and sliding windows.
//
//     kvconform run 'process:node adapter.mjs'       (docs/protocol.md)
//
// Needs nothing but node. Every size is a BigInt: a Number is exact only up to 2^53.

import { readSync, writeSync } from 'node:fs'

class Refused extends Error {}
class Unsupported extends Error {}

const DTYPE_BYTES = {
  float32: 4n, float16: 2n, bfloat16: 2n, float8_e4m3fn: 1n, float8_e5m2: 1n, int8: 1n, uint8: 1n,
}
const COMMON = ['block_size', 'num_kv_heads', 'head_size', 'head_size_v', 'dtype', 'page_size_padded', 'sliding_window']
const KINDS = {
  full_attention: [...COMMON, 'attention_chunk_size', 'non_causal'],
  sliding_window: [...COMMON, 'extra_retained_tokens'],
}
const RECORDED = ['sliding_window', 'attention_chunk_size'] // in full attention, which frees nothing

const cdiv = (dividend, divisor) => (dividend + divisor - 1n) / divisor
const least = (a, b) => (a < b ? a : b)

function unpaddedPage(spec) {
  if (!(spec.dtype in DTYPE_BYTES)) throw new Unsupported(`dtype ${spec.dtype}`)
  if (spec.block_size <= 0n) throw new Refused('the block size is not positive')
  const heads = spec.head_size + (spec.head_size_v ?? spec.head_size)
  return spec.num_kv_heads * spec.block_size * heads * DTYPE_BYTES[spec.dtype]
}

function page(spec) {
  const unpadded = unpaddedPage(spec)
  const padded = spec.page_size_padded ?? unpadded
  if (padded < unpadded) throw new Refused('the padded page is less than the bytes in it')
  return padded
}

function construct(spec) {
  page(spec) // refuses what has none
  return { ...spec, head_size_v: spec.head_size_v ?? spec.head_size }
}

function resize(spec, blockSize) {
  if (blockSize <= 0n) throw new Refused('the block size is not positive')
  // A padding asked for is scaled with the tokens in the page.
  const padded = spec.page_size_padded === null ? null : (spec.page_size_padded * blockSize) / spec.block_size
  return construct({ ...spec, block_size: blockSize, page_size_padded: padded })
}

function blocks(spec, deployment) {
  const { max_model_len: longest, decode_context_parallel: ranks } = deployment
  if (spec.kind === 'full_attention') return cdiv(cdiv(longest, ranks), spec.block_size)
  if (ranks > 1n) throw new Refused('a sliding window cannot be split over ranks')
  const inFlight = deployment.in_flight_tokens + deployment.num_lookahead_tokens
  const held = spec.sliding_window - 1n + spec.extra_retained_tokens + inFlight
  // One more, since a window need not start where a block does; never more than the whole request.
  return least(cdiv(least(held, longest), spec.block_size) + 1n, cdiv(longest, spec.block_size))
}

function merge(specs) {
  if (specs.length === 0) throw new Refused('nothing to merge')
  const merged = construct(specs[0])
  const full = merged.kind === 'full_attention'
  for (const other of specs.map(construct)) {
    for (const [name, value] of Object.entries(other)) {
      if (full && RECORDED.includes(name) && (value === null || merged[name] === null)) {
        merged[name] ??= value
      } else if (full && name === 'non_causal') {
        merged[name] ||= value
      } else if (merged[name] !== value) {
        throw new Refused(`layers of one group differ in ${name}`)
      }
    }
  }
  if (full && merged.sliding_window !== null && merged.attention_chunk_size !== null) {
    throw new Refused('a group records a window and a chunk at once')
  }
  return merged
}

const OPERATIONS = {
  construct: ({ spec }) => construct(spec),
  page_size_bytes: ({ spec }) => page(spec),
  unpadded_page_size_bytes: ({ spec }) => unpaddedPage(spec),
  copy_with_new_block_size: ({ spec, block_size }) => resize(spec, block_size),
  max_blocks_per_request: ({ spec, deployment }) => blocks(spec, deployment),
  max_memory_usage_bytes: ({ spec, deployment }) => blocks(spec, deployment) * page(spec),
  max_num_blocks_per_req: ({ spec, deployment, max_len }) =>
    cdiv(max_len, spec.block_size * deployment.decode_context_parallel),
  merge: ({ specs }) => merge(specs),
}

function reply({ id, operation, arguments: given }) {
  try {
    if (!(operation in OPERATIONS)) throw new Unsupported(`operation ${operation}`)
    return { id, result: OPERATIONS[operation](given) }
  } catch (error) {
    if (error instanceof Refused) return { id, refused: error.message }
    if (error instanceof Unsupported) return { id, unsupported: error.message }
    return { id, error: `${error}` }
  }
}

// Integers of 2^53 and beyond are decimal strings, in both directions.

function read(line) {
  return JSON.parse(line, (_, value) => {
    const digits = typeof value === 'string' && /^-?[0-9]{16,}$/.test(value)
    return digits || typeof value === 'number' ? BigInt(value) : value
  })
}

function write(message) {
  const line = JSON.stringify(message, (_, value) => {
    if (typeof value !== 'bigint') return value
    return -(2n ** 53n) < value && value < 2n ** 53n ? Number(value) : `${value}`
  })
  writeSync(1, `${line}\n`)
}

function obey(message) {
  if (message.command === 'stop') process.exit(0)
  if (message.command === 'start') {
    write({ protocol: 1, name: 'javascript example', version: '1', kinds: KINDS, operations: Object.keys(OPERATIONS) })
  } else {
    for (const ask of message.asks ?? [message]) write(reply(ask))
  }
}

const chunk = Buffer.alloc(65536)
let heard = ''
for (let length; (length = readSync(0, chunk)) > 0; ) {
  const lines = (heard + chunk.toString('utf8', 0, length)).split('\n')
  heard = lines.pop()
  for (const line of lines) obey(read(line))
}
