/** Objects of a table that are created before they are used. */
import type { NetlinkRequest } from '../core/message.ts';
import { newChainRequest } from './chain.ts';
import { newCounterRequest } from './counter.ts';
import { newFlowtableRequest } from './flowtable.ts';
import { declareSetRequest, type NftSetDeclaration } from './set.ts';
import type { NftBaseChain, NftTable } from './types.ts';

/** An object to create if it does not exist. An existing one keeps its content, but must have the same type. */
export type NftDeclaration =
  | ({ readonly kind: 'set' } & NftSetDeclaration)
  | NftChainDeclaration
  | NftCounterDeclaration
  | NftFlowtableDeclaration;

export interface NftChainDeclaration {
  readonly kind: 'chain';
  readonly name: string;
  /** undefined for a chain that is only jumped to. */
  readonly base?: NftBaseChain | undefined;
}

export interface NftCounterDeclaration {
  readonly kind: 'counter';
  readonly name: string;
  /** Initial values; default 0. */
  readonly packets?: bigint;
  readonly bytes?: bigint;
}

/** A flowtable at the hook ingress, which counts packets in conntrack. */
export interface NftFlowtableDeclaration {
  readonly kind: 'flowtable';
  readonly name: string;
  readonly priority: number;
}

/** The request that creates an object. @throws RangeError for an invalid name. */
export function declarationRequest(table: NftTable, declared: NftDeclaration): NetlinkRequest {
  switch (declared.kind) {
    case 'set':
      return declareSetRequest(table, declared);
    case 'chain':
      return newChainRequest(table, declared.name, declared.base);
    case 'counter':
      return newCounterRequest(table, declared.name, declared.packets, declared.bytes);
    case 'flowtable':
      return newFlowtableRequest(table, declared.name, declared.priority);
  }
}
