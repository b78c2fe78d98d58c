/** Probes one port over TCP or UDP. */
import { createSocket } from 'node:dgram';
import { connect } from 'node:net';
import { familyOf } from '../api/addresses.ts';
import { type ProbeResult, resultOfAnswer, resultOfError } from './outcome.ts';

export interface ProbeSettings {
  readonly vip: string;
  /** Source address; undefined: chosen by the routes. */
  readonly source: string | undefined;
  /** Milliseconds. */
  readonly timeout: number;
  readonly expected: RegExp | undefined;
}

/**
 * Milliseconds to wait for the first line after the handshake, if no text is expected. Many servers, such as HTTP
 * servers, send nothing before a request.
 */
const GREETING_WAIT = 300;
/** Milliseconds to wait for the ICMP error of a rule in the same network namespace. */
const REJECTION_WAIT = 100;
const STOPPED_HERE = {
  outcome: 'failed',
  text: 'EPERM (a rule of the client drops it)',
} as const;
/** Characters of an answer that are kept. */
const MAX_ANSWER = 1024;
/** The request for its name that Kubernetes' e2e test server (agnhost netexec) answers; echo servers repeat it. */
const DATAGRAM = 'hostname';

/** The code of the error with which the kernel refuses a source address, such as `EADDRNOTAVAIL`; undefined: it accepts. */
export function sourceError(address: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = createSocket(familyOf(address) === 'IPv4' ? 'udp4' : 'udp6');
    const finish = (code?: string) => {
      socket.close();
      resolve(code);
    };
    socket.once('error', (error: NodeJS.ErrnoException) => finish(error.code ?? error.message));
    socket.bind({ address, exclusive: true }, () => finish());
  });
}

/** Connects, reads the first line if the server sends one, and resets the connection. Never rejects. */
export function probeTcp(settings: ProbeSettings, port: number): Promise<ProbeResult> {
  const { vip: host, source, timeout, expected } = settings;
  return new Promise((resolve) => {
    let received: string | undefined;
    const socket = connect({
      host,
      port,
      family: familyOf(host) === 'IPv4' ? 4 : 6,
      ...(source === undefined ? {} : { localAddress: source }),
    });
    const finish = (result: ProbeResult) => {
      clearTimeout(timer);
      // A reset leaves no TIME_WAIT, whose conntrack entry would last two minutes instead of ten seconds. Before the
      // handshake is complete, Node.js would wait for it to send a reset.
      if (received === undefined) socket.destroy();
      else socket.resetAndDestroy();
      resolve(result);
    };
    const finishAnswered = () => finish(resultOfAnswer(firstLine(received ?? ''), expected));
    let timer = setTimeout(() => finish({ outcome: 'timed out', text: '' }), timeout);
    socket.setEncoding('latin1');
    socket.once('connect', () => {
      received = '';
      clearTimeout(timer);
      const wait = expected === undefined ? Math.min(GREETING_WAIT, timeout) : timeout;
      timer = setTimeout(finishAnswered, wait);
    });
    socket.on('data', (text) => {
      received = (received ?? '') + String(text);
      if (received.includes('\n') || received.length > MAX_ANSWER) finishAnswered();
    });
    socket.once('end', finishAnswered);
    socket.on('error', (error: NodeJS.ErrnoException) => {
      // After the handshake, a reset by the server is the end of its answer.
      if (received !== undefined) finishAnswered();
      else finish(resultOfError(error.code ?? error.message));
    });
  });
}

/** Sends a datagram, again after half of the time, and waits for a reply or an ICMP error. Never rejects. */
export function probeUdp(settings: ProbeSettings, port: number): Promise<ProbeResult> {
  const { vip, source, timeout, expected } = settings;
  return new Promise((resolve) => {
    const socket = createSocket(familyOf(vip) === 'IPv4' ? 'udp4' : 'udp6');
    let isOpen = true;
    const finish = (result: ProbeResult) => {
      if (!isOpen) return;
      isOpen = false;
      clearTimeout(repeat);
      clearTimeout(timer);
      clearTimeout(denied);
      socket.close();
      resolve(result);
    };
    const fail = (error: NodeJS.ErrnoException | null | undefined) => {
      if (error) finish(resultOfError(error.code ?? error.message));
    };
    let denied: NodeJS.Timeout | undefined;
    const send = () => {
      if (!isOpen) return;
      socket.send(DATAGRAM, (error: NodeJS.ErrnoException | null) => {
        if (error?.code !== 'EPERM') fail(error);
        // A rule in this namespace stops the datagram. A rule that rejects it also sends an ICMP error to the socket.
        else denied ??= setTimeout(() => finish(STOPPED_HERE), REJECTION_WAIT);
      });
    };
    const repeat = setTimeout(send, timeout / 2);
    const timer = setTimeout(() => finish({ outcome: 'timed out', text: '' }), timeout);
    socket.on('error', fail);
    socket.on('message', (message) =>
      finish(resultOfAnswer(firstLine(message.toString('latin1', 0, MAX_ANSWER)), expected)),
    );
    // Only a connected socket gets ICMP errors, and only from its peer's address.
    const open = () => {
      if (isOpen) socket.connect(port, vip, (error?: Error) => (error ? fail(error) : send()));
    };
    if (source === undefined) open();
    else socket.bind({ address: source, exclusive: true }, open);
  });
}

function firstLine(text: string): string {
  return text.split('\n', 1)[0]?.slice(0, MAX_ANSWER) ?? '';
}
