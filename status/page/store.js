/** The state of the page: where it is, and the last answers of the agent. */
import { parseLocation } from './location.js';

/** Milliseconds for which the page says that the agent restarted. */
const RESTART_NOTICE = 30_000;

/** Answers that every page shows. */
const KEPT = new Set(['/api/v1', '/api/v1/status']);

/** Answers to keep; a long list that is scrolled has one for each part. */
const MAX_ANSWERS = 20;

/** @import { NodeStatus } from '../api/node-status.ts' */
/** @import { PageLocation } from './location.js' */

/**
 * @typedef {object} Answer
 * @property {any} [value] The last answer; undefined before the first.
 * @property {string} [error] Why the last request failed.
 * @property {number} [at] Time of the last answer, in milliseconds since 1970.
 */

/**
 * @typedef {object} State
 * @property {PageLocation} location
 * @property {ReadonlyMap<string, Answer>} answers by path.
 * @property {number | undefined} lostSince Since when the agent does not answer.
 * @property {NodeStatus | undefined} status
 * @property {number | undefined} restartedAt When the page saw a restart of the agent, for a while.
 * @property {boolean} isOutdated The agent has another version than the files of this page.
 * @property {string | undefined} fault An error of the page that no view shows.
 * @property {number} scroll First row that the list of Services shows.
 */

export class Store {
  /** @type {State} */
  state = {
    location: parseLocation(''),
    answers: new Map(),
    lostSince: undefined,
    status: undefined,
    restartedAt: undefined,
    isOutdated: false,
    fault: undefined,
    scroll: 0,
  };
  /** @type {() => void} */
  #onChange = () => {};
  /** @type {string | undefined} */
  #version;

  /** @param {() => void} callback */
  onChange(callback) {
    this.#onChange = callback;
  }

  /** @param {Partial<State>} changes */
  update(changes) {
    this.state = { ...this.state, ...changes };
    this.#onChange();
  }

  /** @param {PageLocation} location */
  navigate(location) {
    const { location: before, answers } = this.state;
    const isSamePage =
      location.path.join('/') === before.path.join('/') && location.page === before.page;
    // Answers for other pages are old when one comes back.
    const kept = isSamePage ? answers : [...answers].filter(([path]) => KEPT.has(path));
    this.update({ location, answers: new Map(kept), scroll: 0 });
  }

  /** @param {string} path @param {any} value @param {number} now */
  answered(path, value, now) {
    const answers = new Map(this.state.answers);
    // The latest come last.
    answers.delete(path);
    answers.set(path, { value, at: now });
    const [oldest] = answers.keys();
    if (answers.size > MAX_ANSWERS && oldest !== undefined) answers.delete(oldest);
    /** @type {Partial<State>} */
    const changes = { answers, lostSince: undefined };
    if (path === '/api/v1/status') Object.assign(changes, this.#statusChanges(value, now));
    this.update(changes);
  }

  /** The agent answered that nothing changed: nothing is drawn again. @param {string} path @param {any} value @param {number} now */
  unchanged(path, value, now) {
    const { answers, lostSince } = this.state;
    if (lostSince !== undefined || !answers.has(path)) this.answered(path, value, now);
  }

  /** The agent answered with an error. @param {string} path @param {string} error */
  refused(path, error) {
    const answers = new Map(this.state.answers).set(path, { error });
    this.update({ answers, lostSince: undefined });
  }

  /** The agent answered, but had no time for more. */
  busy() {
    if (this.state.lostSince !== undefined) this.update({ lostSince: undefined });
  }

  /** The page itself failed. The same message again changes nothing, so a fault of the drawing causes no loop. @param {string} message */
  failed(message) {
    if (message !== this.state.fault) this.update({ fault: message });
  }

  /** The agent did not answer. @param {number} now */
  lost(now) {
    this.update({ lostSince: this.state.lostSince ?? now });
  }

  /** @param {NodeStatus} status @param {number} now @returns {Partial<State>} */
  #statusChanges(status, now) {
    const before = this.state.status;
    const isRestart = before !== undefined && before.startedAt !== status.startedAt;
    const { restartedAt } = this.state;
    const isRecent = restartedAt !== undefined && now - restartedAt < RESTART_NOTICE;
    this.#version ??= status.version;
    return {
      status,
      restartedAt: isRestart ? now : isRecent ? restartedAt : undefined,
      isOutdated: this.#version !== status.version,
    };
  }
}
