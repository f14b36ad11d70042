"""JavaScript that runs in every page: a clock that stands still between actions, and reading the page as a list."""

from __future__ import annotations

CLOCK = """
(() => {
  if (window.agent) return;
  const RealDate = Date, start = RealDate.UTC(2017, 2, 1);
  let now = start, last = 0;
  const timers = new Map();
  const add = (call, delay, repeats, args) => {
    const wait = Math.max(1, Number(delay) || 0);
    timers.set(++last, {call: typeof call === 'function' ? call : () => (0, eval)(call), args, due: now + wait,
                        every: repeats ? wait : 0});
    return last;
  };
  const clear = id => { timers.delete(id); };
  window.setTimeout = (call, delay, ...args) => add(call, delay, false, args);
  window.setInterval = (call, delay, ...args) => add(call, delay, true, args);
  window.requestAnimationFrame = call => add(() => call(now - start), 16, false, []);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = clear;
  performance.now = () => now - start;
  window.Date = new Proxy(RealDate, {
    construct: (target, args, made) => Reflect.construct(target, args.length ? args : [now], made),
    apply: () => new RealDate(now).toString(),
    get: (target, key) => key === 'now' ? () => now : Reflect.get(target, key),
  });
  // Only until the page's own generator is seeded.
  let state = 1;
  Math.random = () => (state = (state * 48271) % 2147483647) / 2147483647;

  const advance = ms => {
    const end = now + ms;
    for (let count = 0; count < 5000; count++) {
      let next = null, key = 0;
      for (const [id, timer] of timers) {
        if (timer.due <= end && (next === null || timer.due < next.due)) { next = timer; key = id; }
      }
      if (next === null) break;
      now = Math.max(now, next.due);
      if (next.every) next.due = now + next.every; else timers.delete(key);
      try { next.call.apply(window, next.args); } catch (error) { console.error(error); }
    }
    now = end;
    for (let place = 0; place < window.frames.length; place++) {
      try { window.frames[place].agent.advance(ms); } catch (error) { /* still loading */ }
    }
  };

  const watched = new WeakSet(), events = new Set(['click', 'mousedown', 'mouseup', 'pointerdown', 'pointerup']);
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (events.has(type) && this instanceof Element) watched.add(this);
    return listen.call(this, type, ...rest);
  };
  window.agent = {advance, watched, leaving: false};
  listen.call(window, 'beforeunload', () => { window.agent.leaving = true; });
})();
"""
"""Time passes by `agent.advance(ms)` alone. Elements that listen to the mouse are in `agent.watched`."""

READER = """
(() => {
  const agent = window.agent;
  if (window.top !== window || agent.read) return;
  const HIDDEN = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'BR', 'HR', 'DATALIST']);
  const OURS = new Set(['reward-display', 'sync-task-cover', 'click-canvas', 'query', 'query-pretty']);
  const BUTTONS = new Set(['button', 'submit', 'reset', 'image']);
  const TICKED = {checkbox: 'checkbox', radio: 'radio button'};
  const MAX_ITEMS = 3000, MAX_NAME = 400;
  const ids = new WeakMap(), known = [];
  const idOf = element => {
    if (!ids.has(element)) ids.set(element, known.push(element));
    return ids.get(element);
  };
  const find = id => {
    const element = known[id - 1];
    return element && element.isConnected ? element : null;
  };
  const clean = text => (text || '').replace(/\\s+/g, ' ').trim().slice(0, MAX_NAME);
  const round = number => Math.round(number * 10) / 10;

  const offsetOf = element => {
    let x = 0, y = 0, view = element.ownerDocument.defaultView;
    while (view && view !== window && view.frameElement) {
      const rect = view.frameElement.getBoundingClientRect();
      x += rect.left; y += rect.top; view = view.parent;
    }
    return [x, y];
  };
  // Where to click.
  const point = element => {
    const boxes = element.getClientRects();
    const rect = boxes.length ? boxes[0] : element.getBoundingClientRect();
    const [dx, dy] = offsetOf(element);
    return [round(rect.left + rect.width / 2 + dx), round(rect.top + rect.height / 2 + dy)];
  };
  // Whether the element is what lies there.
  const uncovered = (element, [x, y]) => {
    const [dx, dy] = offsetOf(element), found = element.ownerDocument.elementFromPoint(x - dx, y - dy);
    return found !== null && (found === element || element.contains(found)) ? 1 : 0;
  };
  // Asking what lies where costs a millisecond after every input; while nothing moves, the answers stay.
  let places = '', tops = [];
  const markTops = items => {
    const now = items.map(item => `${item[0]},${item[4]},${item[5]}`).join(' ');
    if (now !== places) {
      places = now;
      tops = items.map(item => item[0] ? uncovered(known[item[0] - 1], [item[4], item[5]]) : 0);
    }
    items.forEach((item, place) => item.push(tops[place]));
    return items;
  };

  const interactive = (element, style) => agent.watched.has(element) || element.onclick !== null
    || style.cursor === 'pointer' || element.tagName === 'A' || element.tagName === 'BUTTON';
  const colour = value => {
    const parts = /^rgba?\\((\\d+), (\\d+), (\\d+)(, 0)?\\)$/.exec(value);
    if (!parts || parts[4]) return '';
    return '#' + parts.slice(1, 4).map(part => Number(part).toString(16).padStart(2, '0')).join('');
  };
  const labelOf = element => clean(Array.from(element.labels || []).map(label => label.textContent).join(' '));

  const describeShape = (element, style) => {
    const box = element.getBoundingClientRect(), [dx, dy] = offsetOf(element);
    const fill = colour(style.fill), state = [];
    if (fill) state.push(fill);
    if (element.tagName === 'text') state.push(`size ${parseInt(style.fontSize)}`);
    state.push(`at ${Math.round(box.left + dx)},${Math.round(box.top + dy)}`);
    state.push(`${Math.round(box.width)}x${Math.round(box.height)}`);
    return state.join(' ');
  };

  const collect = () => {
    const items = [];
    const push = (element, kind, name, state) => {
      if (items.length < MAX_ITEMS) items.push([idOf(element), kind, name, state, ...point(element)]);
    };
    const marks = element => {
      const found = [];
      if (element.ownerDocument.activeElement === element) found.push('focused');
      if (element.disabled) found.push('disabled');
      if (element.getAttribute('aria-selected') === 'true') found.push('selected');
      if (element.getAttribute('aria-expanded') === 'true') found.push('open');
      return found;
    };

    const walk = element => {
      const tag = element.tagName;
      if (HIDDEN.has(tag) || OURS.has(element.id) || items.length >= MAX_ITEMS) return;
      const style = element.ownerDocument.defaultView.getComputedStyle(element);
      if (style.display === 'none') return;
      const hidden = style.visibility !== 'visible';
      const box = element.getBoundingClientRect(), empty = box.width === 0 || box.height === 0;
      const state = marks(element);
      if (!hidden && !empty) {
        if (tag === 'INPUT') {
          if (element.type === 'hidden') return;
          const type = element.type;
          if (TICKED[type]) {
            state.unshift(element.checked ? 'checked' : 'not checked');
            return push(element, TICKED[type], labelOf(element), state.join(' '));
          }
          if (BUTTONS.has(type)) return push(element, 'button', clean(element.value || element.alt), state.join(' '));
          if (element.placeholder) state.push(`hint ${JSON.stringify(clean(element.placeholder))}`);
          return push(element, type === 'text' ? 'field' : `${type} field`, clean(element.value), state.join(' '));
        }
        if (tag === 'TEXTAREA') return push(element, 'text area', clean(element.value), state.join(' '));
        if (tag === 'SELECT') {
          const labels = Array.from(element.options).map(option => clean(option.textContent));
          const chosen = Array.from(element.selectedOptions).map(option => clean(option.textContent));
          state.push(`options ${JSON.stringify(labels)}`);
          return push(element, 'list', chosen.join(', '), state.join(' '));
        }
        if (tag === 'IMG') {
          return push(element, 'image', clean(element.alt || element.src.split('/').pop()), state.join(' '));
        }
        if (tag === 'CANVAS') {
          return push(element, 'canvas', '', `${Math.round(box.width)}x${Math.round(box.height)}`);
        }
      }
      if (tag === 'IFRAME') {
        let inner = null;
        try { inner = element.contentDocument; } catch (error) { /* another origin */ }
        if (inner && inner.body) walk(inner.body);
        return;
      }
      // The label of a checkbox is the checkbox's name.
      const control = tag === 'LABEL' ? element.control : null;
      const named = control && TICKED[control.type] && control.getClientRects().length > 0;
      if (named && !element.contains(control)) return;
      if (!hidden && element.ownerSVGElement) {
        if (tag === 'text' || tag === 'tspan') {
          return push(element, 'text', clean(element.textContent), describeShape(element, style));
        }
        if (!element.children.length) return empty ? undefined : push(element, tag, '', describeShape(element, style));
      }
      const active = interactive(element, style);
      const whole = tag === 'BUTTON' || tag === 'A' && !element.querySelector('input, button, select');
      if (!element.children.length || whole) {
        if (hidden || empty || tag === 'LABEL' && named) return;
        const name = clean(element.textContent), kind = tag === 'A' ? 'link' : tag === 'BUTTON' ? 'button' : '';
        if (element.isContentEditable) return push(element, 'text area', name, state.join(' '));
        if (name || kind) {
          if (!name && element.className) state.push(`class ${JSON.stringify(clean(String(element.className)))}`);
          return push(element, kind || 'text', name, state.join(' '));
        }
        const background = colour(style.backgroundColor);
        if (active || background && background !== '#ffffff') {
          if (background) state.unshift(background);
          if (element.className) state.push(`class ${JSON.stringify(clean(String(element.className)))}`);
          push(element, 'box', clean(element.title), state.join(' '));
        }
        return;
      }
      if (element.isContentEditable && element.parentElement && !element.parentElement.isContentEditable) {
        return push(element, 'text area', clean(element.innerText), state.join(' '));
      }
      for (const child of element.childNodes) {
        if (child.nodeType === Node.ELEMENT_NODE) walk(child);
        if (child.nodeType !== Node.TEXT_NODE || hidden || named || !child.data.trim()) continue;
        if (active) push(element, 'text', clean(child.data), state.join(' '));
        else if (items.length < MAX_ITEMS) items.push([0, '', clean(child.data), '', 0, 0]);
      }
    };
    if (document.body) walk(document.body);
    return markTops(items);
  };

  const query = () => {
    const said = core.getUtterance();
    return typeof said === 'string' ? said : said.utterance;
  };

  // 1: a document is being loaded; 2: a frame shows something foreign, an error page for example.
  const loading = () => {
    if (agent.leaving) return 1;
    for (let place = 0; place < window.frames.length; place++) {
      try {
        const frame = window.frames[place];
        if (frame.document.readyState !== 'complete' || frame.agent && frame.agent.leaving) return 1;
      } catch (error) { return 2; }
    }
    return 0;
  };
  agent.read = (ms, episode) => {
    if (agent.episode !== episode || loading() === 2) return JSON.stringify({left: true});
    if (loading()) return JSON.stringify({loading: ms});
    agent.advance(ms);
    if (loading()) return JSON.stringify({loading: 0});
    if (WOB_DONE_GLOBAL) return JSON.stringify({done: true, raw: WOB_RAW_REWARD_GLOBAL});
    return JSON.stringify({query: query(), items: collect()});
  };
  agent.begin = (seed, episode) => {
    agent.episode = episode;
    core.EPISODE_MAX_TIME = 1e12;
    core.setDataMode('train');
    Math.seedrandom(seed);
    core.startEpisodeReal();
    // The countdown and the mark of the last click would only be drawn for nobody.
    core.clearTimer();
    for (const id of ['reward-display', 'click-canvas']) document.getElementById(id).style.display = 'none';
  };
  agent.ready = () => WOB_TASK_READY;
  agent.says = (seed, ms) => {
    agent.begin(seed);
    agent.advance(ms);
    return JSON.stringify({query: query(), items: collect()});
  };
  agent.point = id => {
    const element = find(id);
    if (!element) return null;
    element.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
    places = '';
    const found = point(element);
    return [...found, uncovered(element, found)];
  };
  agent.click = id => {
    const element = find(id);
    if (typeof element.click === 'function') {
      element.click();
      element.focus();
    } else {
      for (const type of ['mousedown', 'mouseup', 'click']) {
        element.dispatchEvent(new MouseEvent(type, {bubbles: true, cancelable: true}));
      }
    }
  };
  agent.edit = id => {
    const element = find(id);
    if (!element) return 'gone';
    const field = element.tagName === 'TEXTAREA' || element.tagName === 'INPUT' && !BUTTONS.has(element.type)
      && !TICKED[element.type];
    if (!field && !element.isContentEditable) return 'is no field to type into';
    if (element.disabled || element.readOnly) return 'cannot be changed';
    element.focus();
    if (field) element.select();
    else element.ownerDocument.getSelection().selectAllChildren(element);
    return '';
  };
  agent.select = (id, label) => {
    const element = find(id);
    if (!element) return 'gone';
    if (element.tagName !== 'SELECT') return 'is no list';
    const option = Array.from(element.options).find(option => clean(option.textContent) === clean(label));
    if (!option) return `has no option ${JSON.stringify(clean(label))}`;
    element.focus();
    option.selected = !element.multiple || !option.selected;
    for (const type of ['input', 'change']) element.dispatchEvent(new Event(type, {bubbles: true}));
    return '';
  };
  agent.scroll = (id, direction) => {
    let element = id ? find(id) : null;
    if (id && !element) return 'gone';
    const scrolls = candidate => candidate.scrollHeight > candidate.clientHeight + 1
      && (candidate.tagName === 'TEXTAREA' || candidate.tagName === 'SELECT'
        || /auto|scroll/.test(candidate.ownerDocument.defaultView.getComputedStyle(candidate).overflowY));
    while (element && !scrolls(element)) element = element.parentElement;
    element = element || document.scrollingElement;
    const before = element.scrollTop;
    element.scrollTop += direction * Math.max(20, element.clientHeight * 0.8);
    return element.scrollTop === before ? 'end' : '';
  };
})();
"""
"""Reads and acts in the top document; elements get numbers when they are first seen and keep them."""

SCRIPT = CLOCK + READER
