/** The part of STUN and TURN (RFC 8489, 8656) that a client of a relay with long-term credentials needs. */
import { createHash, createHmac, randomBytes } from 'node:crypto';
import ipaddr from 'ipaddr.js';

const ALLOCATE = 0x003;
const CHANNEL_BIND = 0x009;

const MAGIC = 0x2112_a442;
const HEADER = 20;
const FIRST_CHANNEL = 0x4000;

const USERNAME = 0x0006;
const MESSAGE_INTEGRITY = 0x0008;
const ERROR_CODE = 0x0009;
const CHANNEL_NUMBER = 0x000c;
const XOR_PEER_ADDRESS = 0x0012;
const REALM = 0x0014;
const NONCE = 0x0015;
const XOR_RELAYED_ADDRESS = 0x0016;
const REQUESTED_ADDRESS_FAMILY = 0x0017;
const REQUESTED_TRANSPORT = 0x0019;

const UDP = 17;
const FAMILY = { 4: 1, 6: 2 } as const;

export interface TransportAddress {
  readonly address: string;
  readonly port: number;
}

/** What a relay asked for in its first answer, with the user's name and password. */
export interface Credentials {
  readonly user: string;
  readonly password: string;
  readonly realm: string;
  readonly nonce: string;
}

/** An answer of the relay. */
export interface Answer {
  readonly type: number;
  readonly transaction: string;
  /** Error code, such as 401; undefined for success. */
  readonly error: number | undefined;
  readonly realm: string;
  readonly nonce: string;
  readonly relayed: TransportAddress | undefined;
}

type Attribute = readonly [type: number, value: Buffer];

/** Request for a relayed UDP port of a family. @returns message and transaction id */
export function allocateRequest(family: 4 | 6, credentials?: Credentials) {
  return request(
    ALLOCATE,
    () => [
      [REQUESTED_TRANSPORT, Buffer.of(UDP, 0, 0, 0)],
      [REQUESTED_ADDRESS_FAMILY, Buffer.of(FAMILY[family], 0, 0, 0)],
    ],
    credentials,
  );
}

/** Request that binds the first channel to a peer. @returns message and transaction id */
export function channelRequest(peer: TransportAddress, credentials: Credentials) {
  return request(
    CHANNEL_BIND,
    (transaction) => [
      [CHANNEL_NUMBER, Buffer.of(FIRST_CHANNEL >> 8, FIRST_CHANNEL & 0xff, 0, 0)],
      [XOR_PEER_ADDRESS, xorAddress(peer, transaction)],
    ],
    credentials,
  );
}

/** Puts a header for the first channel before data. */
export function channelData(data: Buffer): Buffer {
  const message = Buffer.alloc(4 + data.length);
  message.writeUInt16BE(FIRST_CHANNEL, 0);
  message.writeUInt16BE(data.length, 2);
  data.copy(message, 4);
  return message;
}

/** Length of the header of channel data. */
export const CHANNEL_HEADER = 4;

/** Whether a message of the relay is channel data. */
export function isChannelData(message: Buffer): boolean {
  return message.length > CHANNEL_HEADER && message.readUInt16BE(0) === FIRST_CHANNEL;
}

/** Reads an answer; undefined for anything else. */
export function readAnswer(message: Buffer): Answer | undefined {
  if (message.length < HEADER || message.readUInt32BE(4) !== MAGIC) return undefined;
  const transaction = message.subarray(8, HEADER);
  const attributes = new Map<number, Buffer>();
  for (let at = HEADER; at + 4 <= message.length; ) {
    const length = message.readUInt16BE(at + 2);
    attributes.set(message.readUInt16BE(at), message.subarray(at + 4, at + 4 + length));
    at += 4 + length + padding(length);
  }
  const error = attributes.get(ERROR_CODE);
  const relayed = attributes.get(XOR_RELAYED_ADDRESS);
  return {
    type: message.readUInt16BE(0),
    transaction: transaction.toString('hex'),
    error: error && (error[2] ?? 0) * 100 + (error[3] ?? 0),
    realm: String(attributes.get(REALM) ?? ''),
    nonce: String(attributes.get(NONCE) ?? ''),
    relayed: relayed && plainAddress(relayed, transaction),
  };
}

function request(
  type: number,
  attributes: (transaction: Buffer) => readonly Attribute[],
  credentials: Credentials | undefined,
) {
  const transaction = randomBytes(12);
  const list: Attribute[] = [...attributes(transaction)];
  if (credentials) {
    const { user, realm, nonce } = credentials;
    list.push([USERNAME, Buffer.from(user)], [REALM, Buffer.from(realm)]);
    list.push([NONCE, Buffer.from(nonce)]);
  }
  const body = Buffer.concat(list.map(encoded));
  const header = Buffer.alloc(HEADER);
  header.writeUInt16BE(type, 0);
  header.writeUInt16BE(body.length, 2);
  header.writeUInt32BE(MAGIC, 4);
  transaction.copy(header, 8);
  const id = transaction.toString('hex');
  if (!credentials) return { transaction: id, message: Buffer.concat([header, body]) };
  const { user, password, realm } = credentials;
  const key = createHash('md5').update(`${user}:${realm}:${password}`).digest();
  // The length covers the attribute with the hash, the hash does not.
  header.writeUInt16BE(body.length + 24, 2);
  const hash = createHmac('sha1', key).update(header).update(body).digest();
  const message = Buffer.concat([header, body, encoded([MESSAGE_INTEGRITY, hash])]);
  return { transaction: id, message };
}

function encoded([type, value]: Attribute): Buffer {
  const attribute = Buffer.alloc(4 + value.length + padding(value.length));
  attribute.writeUInt16BE(type, 0);
  attribute.writeUInt16BE(value.length, 2);
  value.copy(attribute, 4);
  return attribute;
}

function padding(length: number): number {
  return -length & 3;
}

function mask(transaction: Buffer): Buffer {
  const magic = Buffer.alloc(4);
  magic.writeUInt32BE(MAGIC);
  return Buffer.concat([magic, transaction]);
}

function xor(bytes: Uint8Array, transaction: Buffer): Buffer {
  const by = mask(transaction);
  return Buffer.from(bytes.map((byte, at) => byte ^ (by[at] ?? 0)));
}

function xorAddress({ address, port }: TransportAddress, transaction: Buffer): Buffer {
  const bytes = Uint8Array.from(ipaddr.parse(address).toByteArray());
  const header = Buffer.alloc(4);
  header[1] = bytes.length === 4 ? FAMILY[4] : FAMILY[6];
  header.writeUInt16BE(port ^ (MAGIC >>> 16), 2);
  return Buffer.concat([header, xor(bytes, transaction)]);
}

function plainAddress(value: Buffer, transaction: Buffer): TransportAddress {
  const bytes = xor(value.subarray(4), transaction);
  return {
    address: ipaddr.fromByteArray([...bytes]).toString(),
    port: value.readUInt16BE(2) ^ (MAGIC >>> 16),
  };
}
