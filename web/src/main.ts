import { mount } from "svelte";

import App from "./chat/App.svelte";
import { applyTheme } from "./lib/theme";
import { speak } from "./strings/chat";
import { speak as speakOfFaults } from "./strings/faults";
import { speak as speakAtGate } from "./strings/gate";
import { language } from "./strings/language";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/prose.css";

applyTheme();

async function begin(target: HTMLElement): Promise<void> {
  document.documentElement.lang = language;
  await Promise.all([speak(), speakAtGate(), speakOfFaults()]);
  mount(App, { target });
}

const target = document.getElementById("page");
if (target) void begin(target);
